"""The request to a member: the client's body with the gateway's decisions in it, and headers for our own workers."""

from typing import Any
from urllib.parse import quote

import msgspec

from protocol.accounting import ACCOUNTING_HEADER
from protocol.requests import AllowedToolsChoice, ChatCompletionRequest, GenerationRequest
from protocol.tools import offer_of
from router.fleet import Member

# The fields of our request types that OpenAI's API knows. Foreign servers may refuse any others.
_OPENAI_FIELDS = (
    frozenset({"model", "messages", "prompt", "max_tokens", "stream", "stream_options", "n", "stop", "seed"})
    | {"temperature", "top_p", "presence_penalty", "frequency_penalty", "logit_bias", "logprobs", "top_logprobs"}
    | {"tools", "tool_choice", "parallel_tool_calls", "response_format", "echo", "reasoning_effort"}
)
# Fields that headers or `max_tokens` replace, or that do not concern a worker. `best_of` can only equal n, its default.
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
    """sent: the client's body, from which `request` was decoded. Its values pass through as they were written.

    model: the name of the model or adapter at the member. A client's own priority and cache salt are dropped.
    continue_from: for each answer, the token ids that it has already. kept_tokens: how many tokens were counted of a
    prompt that is to be truncated.
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
        # The only way to get exact figures from a foreign server. ForeignStream removes the usage chunk if the client
        # did not ask for it.
        fields["stream_options"] = {"include_usage": True}
    if isinstance(request, ChatCompletionRequest) and isinstance(request.tool_choice, AllowedToolsChoice):
        # Sent as a plain tool choice among fewer tools, which every server supports.
        offer = offer_of(request)
        assert offer is not None
        fields["tools"], fields["tool_choice"] = offer.tools, request.tool_choice.allowed_tools.mode
    if has_null and isinstance(request, ChatCompletionRequest) and b"null" in bytes(fields["messages"]):
        fields["messages"] = [_without_nulls(message) for message in msgspec.to_builtins(request.messages)]
    return msgspec.json.encode(fields)


def _without_nulls(message: dict[str, Any]) -> dict[str, Any]:
    """Some servers refuse null for a field that may be absent."""
    return {name: value for name, value in message.items() if value is not None}


def member_headers(
    *, request_id: str, tenant_id: str, weight: float, deadline_s: float, shown_model: str
) -> dict[str, str]:
    """Headers that our workers honour together with the worker key. shown_model: the model's name in answers."""
    return {
        "X-Request-Id": request_id,
        "X-Tiergate-Tenant": tenant_id,
        "X-Tiergate-Weight": f"{weight:g}",
        "X-Tiergate-Deadline-Ms": str(int(deadline_s * 1000)),
        "X-Tiergate-Model": quote(shown_model),
        # Tokens of whole answers are reported while they are made, too, so that a client that leaves early pays for the
        # tokens computed until then.
        ACCOUNTING_HEADER: "events",
    }
