"""What a member gets: the client's request with the gateway's decisions in it, and our workers' headers."""

from typing import Any
from urllib.parse import quote

import msgspec

from protocol.accounting import ACCOUNTING_HEADER
from protocol.requests import ChatCompletionRequest, GenerationRequest
from router.fleet import Member

# What OpenAI's API knows of our request types; foreign servers may refuse more.
_OPENAI_FIELDS = (
    frozenset({"model", "messages", "prompt", "max_tokens", "stream", "stream_options", "n", "stop", "seed"})
    | {"temperature", "top_p", "presence_penalty", "frequency_penalty", "logit_bias", "logprobs", "top_logprobs"}
    | {"tools", "tool_choice", "parallel_tool_calls", "response_format", "echo"}
)
# Said by headers, or of no concern to a worker.
_DROPPED = frozenset({"user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key"})


def member_body(
    request: GenerationRequest,
    member: Member,
    *,
    model: str,
    max_tokens: int,
    priority: int,
    cache_salt: str,
) -> bytes:
    """`model` is the name at the member: its model's or an adapter's. A client's own priority and salt are dropped."""
    fields: dict[str, Any] = {
        name: value
        for name, value in msgspec.to_builtins(request).items()
        if value is not None and name not in _DROPPED
    }
    fields.pop("max_completion_tokens", None)
    # It can only be n, which is what its absence means.
    fields.pop("best_of", None)
    fields |= {"model": model, "max_tokens": max_tokens}
    if member.engine == "tiergate":
        fields |= {"priority": priority, "cache_salt": cache_salt}
        return msgspec.json.encode(fields)
    return msgspec.json.encode(_for_openai(fields, request))


def _for_openai(fields: dict[str, Any], request: GenerationRequest) -> dict[str, Any]:
    known = {name: value for name, value in fields.items() if name in _OPENAI_FIELDS}
    if request.stream:
        # The only way to exact figures there; the relay takes the chunk out when the client did not ask for it.
        known["stream_options"] = {"include_usage": True}
    if isinstance(request, ChatCompletionRequest):
        known["messages"] = [
            {name: value for name, value in message.items() if value is not None} for message in known["messages"]
        ]
    return known


def member_headers(
    *, request_id: str, tenant_id: str, weight: float, deadline_s: float, shown_model: str
) -> dict[str, str]:
    """What our workers honour together with the worker key. `shown_model`: what answers call the model."""
    return {
        "X-Request-Id": request_id,
        "X-Tiergate-Tenant": tenant_id,
        "X-Tiergate-Weight": f"{weight:g}",
        "X-Tiergate-Deadline-Ms": str(int(deadline_s * 1000)),
        "X-Tiergate-Model": quote(shown_model),
        # Whole answers, too, are told while they are made: a client that drops one pays for what it cost until then.
        ACCOUNTING_HEADER: "events",
    }
