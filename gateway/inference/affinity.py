"""Which replicas are likely to have a prompt's beginning cached: by tenant, as the cache itself is."""

from protocol.messages import DeveloperMessage, Message, SystemMessage, content_text
from protocol.requests import ChatCompletionRequest, GenerationRequest, list_prompts
from router.balance import Affinity
from router.ring import hash_key

_MIN_CHARS = 256
"""A shorter beginning is no more than a few blocks, which are computed sooner than looked for."""
_SHARED_CHARS, _OWN_CHARS = 1024, 4096


def affinity_of(request: GenerationRequest, tenant: str) -> Affinity | None:
    """None where nothing would be gained: every replica is as good as another."""
    if isinstance(request, ChatCompletionRequest):
        shared, own = _of_chat(request.messages)
    else:
        prompts = list_prompts(request)
        text = prompts[0] if isinstance(prompts[0], str) else " ".join(map(str, prompts[0][:_OWN_CHARS]))
        shared, own = text[:_SHARED_CHARS], text[:_OWN_CHARS]
    if len(shared) < _MIN_CHARS:
        # Too little that others could share: the conversation is the group.
        shared = own
    if len(own) < _MIN_CHARS:
        return None
    return Affinity(hash_key(tenant, shared), hash_key(own))


def _of_chat(messages: list[Message]) -> tuple[str, str]:
    """What conversations may share, and what tells this one from others: all up to the first that a user said."""
    shared = own = ""
    for message in messages:
        text = content_text(message.content)[:_OWN_CHARS]
        own += text
        if not isinstance(message, SystemMessage | DeveloperMessage):
            break
        shared += text
    return shared[:_OWN_CHARS], own[: 2 * _OWN_CHARS]
