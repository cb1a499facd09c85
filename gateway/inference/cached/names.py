"""The cache key of an answer: SHA-256 over everything that the answer depends on."""

import hashlib
from collections.abc import Sequence
from typing import Any

import msgspec

from gateway.inference.measure import Measured
from gateway.inference.validate import AcceptedGeneration
from protocol.messages import UserMessage, content_text
from protocol.requests import ChatCompletionRequest, GenerationRequest

_VERSION = 1
_NO_MATTER = frozenset(
    {
        *("user", "metadata", "store", "safety_identifier", "prompt_cache_key", "prompt_cache_retention"),
        *("priority", "cache_salt"),
    }
)
"""Fields that do not affect the answer."""
_MAX_SIMILAR_CHARS = 8192
"""The longest message that may be matched by similarity: two longer ones that differ in one word would match."""


def exact_name(accepted: AcceptedGeneration, measured: Measured) -> str:
    return _name(accepted, measured, _fields(accepted.request))


def bucket_name(accepted: AcceptedGeneration, measured: Measured) -> str:
    """The same for all chats that differ only in the text of their last message."""
    fields = _fields(accepted.request)
    messages: Sequence[Any] = fields["messages"]
    return _name(accepted, measured, fields | {"messages": messages[:-1], "similar": True})


def last_text(request: GenerationRequest) -> str | None:
    """The text that may be matched by similarity; None if the request has none."""
    if not isinstance(request, ChatCompletionRequest) or not isinstance(request.messages[-1], UserMessage):
        return None
    text = content_text(request.messages[-1].content)
    return text if text.strip() and len(text) <= _MAX_SIMILAR_CHARS else None


def _fields(request: GenerationRequest) -> dict[str, Any]:
    """The fields that affect the answer. Their order within schemas and messages counts, since models read it."""
    return {name: getattr(request, name) for name in request.__struct_fields__ if name not in _NO_MATTER}


def _name(accepted: AcceptedGeneration, measured: Measured, fields: dict[str, Any]) -> str:
    route = measured.route_request
    # A different adapter, adapter version, pool or weights give a different answer.
    served_by = [
        (pool.name, pool.model_id, sorted({each.load.model_version for each in pool.members if each.load}))
        for pool in measured.pools
    ]
    parts = (
        *(_VERSION, accepted.principal.tenant_text, accepted.path, served_by),
        *(measured.adapter_id, sorted((route.variants or {}).items())),
        *(route.max_tokens, measured.kept_tokens, accepted.principal.is_local_only, fields),
    )
    return hashlib.sha256(msgspec.json.encode(parts)).hexdigest()
