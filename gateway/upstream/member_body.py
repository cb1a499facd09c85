"""What a member gets: the client's request with the gateway's decisions in it, and our workers' headers."""

from typing import Any
from urllib.parse import quote

import msgspec

from protocol.accounting import ACCOUNTING_HEADER
from protocol.requests import AllowedToolsChoice, ChatCompletionRequest, GenerationRequest
from protocol.tools import offer_of
from router.fleet import Member

# What OpenAI's API knows of our request types; foreign servers may refuse more.
_OPENAI_FIELDS = (
    frozenset({"model", "messages", "prompt", "max_tokens", "stream", "stream_options", "n", "stop", "seed"})
    | {"temperature", "top_p", "presence_penalty", "frequency_penalty", "logit_bias", "logprobs", "top_logprobs"}
    | {"tools", "tool_choice", "parallel_tool_calls", "response_format", "echo", "reasoning_effort"}
)
# Said by headers or by `max_tokens`, or of no concern to a worker; best_of can only be n, as in its absence.
_DROPPED = frozenset(
    {"user", "metadata", "store", "safety_identifier", "prompt_cache_key", "prompt_cache_retention"}
    | {"modalities", "verbosity", "prediction", "max_completion_tokens", "best_of", "continue_from", "server_tools"}
)
_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])


def member_body(
    sent: bytes,
    request: GenerationRequest,
    member: Member,
    *,
    model: str,
    max_tokens: int,
    priority: int,
    cache_salt: str,
    continue_from: list[list[int]] | None = None,
    kept_tokens: int | None = None,
) -> bytes:
    """`sent`: the client's body, of which `request` was read; its values pass through as they were written.

    `model` is the name at the member: its model's or an adapter's. A client's own priority and salt are dropped.
    continue_from: of each answer the ids that it has already. kept_tokens: what was counted of a prompt that is to be
    truncated.
    """
    is_own, has_null = member.engine == "tiergate", b"null" in sent
    fields: dict[str, Any] = {
        name: value
        for name, value in _FIELDS.decode(sent).items()
        if name not in _DROPPED and (is_own or name in _OPENAI_FIELDS) and not (has_null and bytes(value) == b"null")
    }
    fields["model"], fields["max_tokens"] = model, max_tokens
    if is_own:
        fields["priority"], fields["cache_salt"] = priority, cache_salt
        if kept_tokens is not None:
            fields["truncate_prompt_tokens"] = kept_tokens
        if continue_from is not None:
            fields["continue_from"] = continue_from
        return msgspec.json.encode(fields)
    if request.stream:
        # The only way to exact figures there; the relay takes the chunk out when the client did not ask for it.
        fields["stream_options"] = {"include_usage": True}
    if isinstance(request, ChatCompletionRequest) and isinstance(request.tool_choice, AllowedToolsChoice):
        # As a plain choice among fewer tools every server knows it.
        offer = offer_of(request)
        assert offer is not None
        fields["tools"], fields["tool_choice"] = offer.tools, request.tool_choice.allowed_tools.mode
    if has_null and isinstance(request, ChatCompletionRequest) and b"null" in bytes(fields["messages"]):
        fields["messages"] = [_without_nulls(message) for message in msgspec.to_builtins(request.messages)]
    return msgspec.json.encode(fields)


def _without_nulls(message: dict[str, Any]) -> dict[str, Any]:
    """Some servers refuse a null where a field may be absent."""
    return {name: value for name, value in message.items() if value is not None}


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
