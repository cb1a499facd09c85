"""Which replicas are likely to have a prompt's prefix cached. Hashed per tenant, because the prefix cache is, too."""

from protocol.messages import DeveloperMessage, Message, SystemMessage, content_text
from protocol.requests import ChatCompletionRequest, GenerationRequest, list_prompts
from router.balance import Affinity
from router.ring import hash_key

_MIN_CHARS = 256
"""A shorter prefix is only a few blocks, which are faster to compute than to look for."""
_SHARED_CHARS, _OWN_CHARS = 1024, 4096


def affinity_of(request: GenerationRequest, tenant: str) -> Affinity | None:
    """None if affinity would gain nothing: all replicas are equally good."""
    if isinstance(request, ChatCompletionRequest):
        shared, own = _of_chat(request.messages)
    else:
        prompts = list_prompts(request)
        text = prompts[0] if isinstance(prompts[0], str) else " ".join(map(str, prompts[0][:_OWN_CHARS]))
        shared, own = text[:_SHARED_CHARS], text[:_OWN_CHARS]
    if len(shared) < _MIN_CHARS:
        # The shared part is too short to be worth grouping by, so each conversation is its own group.
        shared = own
    if len(own) < _MIN_CHARS:
        return None
    return Affinity(hash_key(tenant, shared), hash_key(own))


def _of_chat(messages: list[Message]) -> tuple[str, str]:
    """The text that conversations may share (the leading system messages), and the text that identifies this one
    (those plus the first message after them)."""
    shared = own = ""
    for message in messages:
        text = content_text(message.content)[:_OWN_CHARS]
        own += text
        if not isinstance(message, SystemMessage | DeveloperMessage):
            break
        shared += text
    return shared[:_OWN_CHARS], own[: 2 * _OWN_CHARS]
