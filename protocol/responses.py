"""Bodies of answers and stream chunks, in OpenAI's format."""

from typing import Literal

import msgspec

from protocol.messages import FunctionCall, ToolCall

FinishReason = Literal["stop", "length", "tool_calls", "function_call", "content_filter", "abort", "error"]


class PromptTokensDetails(msgspec.Struct, kw_only=True):
    cached_tokens: int = 0


class CompletionTokensDetails(msgspec.Struct, kw_only=True):
    reasoning_tokens: int


class Usage(msgspec.Struct, kw_only=True):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails | msgspec.UnsetType = msgspec.UNSET


def make_usage(
    prompt_tokens: int, completion_tokens: int, *, cached_tokens: int = 0, reasoning_tokens: int | None = None
) -> Usage:
    """reasoning_tokens: None for a model without reasoning."""
    details = msgspec.UNSET if reasoning_tokens is None else CompletionTokensDetails(reasoning_tokens=reasoning_tokens)
    return Usage(
        prompt_tokens=prompt_tokens,
        completion_tokens=completion_tokens,
        total_tokens=prompt_tokens + completion_tokens,
        prompt_tokens_details=PromptTokensDetails(cached_tokens=cached_tokens),
        completion_tokens_details=details,
    )


class TopLogprob(msgspec.Struct, kw_only=True):
    """`token` is the token's text; if its bytes are only part of a character, they are escaped: `\\xf0\\x9f`."""

    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(TopLogprob, kw_only=True):
    top_logprobs: list[TopLogprob]


class ChatLogprobs(msgspec.Struct, kw_only=True):
    content: list[TokenLogprob]
    refusal: None = None


class CompletionLogprobs(msgspec.Struct, kw_only=True):
    """Parallel lists. The first token of an echoed prompt follows nothing, so its log-probabilities are null.

    Bytes that are only part of a character are written as `bytes:\\xf0\\x9f`. `text_offset` counts characters.
    """

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class PromptLogprob(msgspec.Struct, kw_only=True):
    """`rank` is 1 for the likeliest token of the vocabulary."""

    logprob: float
    rank: int
    decoded_token: str


PromptLogprobs = list[dict[str, PromptLogprob] | None]
"""For each prompt token, by token id: its own log-probability and the likeliest; null for the first token, which
follows nothing."""


class ResponseMessage(msgspec.Struct, kw_only=True):
    role: Literal["assistant"] = "assistant"
    content: str | None
    refusal: None = None
    reasoning_content: str | msgspec.UnsetType = msgspec.UNSET
    tool_calls: list[ToolCall] | msgspec.UnsetType = msgspec.UNSET
    function_call: FunctionCall | msgspec.UnsetType = msgspec.UNSET


class ChatChoice(msgspec.Struct, kw_only=True):
    index: int
    message: ResponseMessage
    finish_reason: FinishReason
    logprobs: ChatLogprobs | None = None
    token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET


class ChatCompletion(msgspec.Struct, kw_only=True):
    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    system_fingerprint: str | None = None
    service_tier: str | msgspec.UnsetType = msgspec.UNSET
    prompt_token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET
    prompt_logprobs: PromptLogprobs | msgspec.UnsetType = msgspec.UNSET


class FunctionCallDelta(msgspec.Struct, kw_only=True, omit_defaults=True):
    name: str | None = None
    arguments: str | None = None


class ToolCallDelta(msgspec.Struct, kw_only=True, omit_defaults=True):
    index: int
    id: str | None = None
    type: str | None = None
    function: FunctionCallDelta | None = None


class Delta(msgspec.Struct, kw_only=True, omit_defaults=True):
    role: str | None = None
    content: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[ToolCallDelta] | None = None
    function_call: FunctionCallDelta | None = None


class ChatChunkChoice(msgspec.Struct, kw_only=True):
    index: int
    delta: Delta
    finish_reason: FinishReason | None = None
    logprobs: ChatLogprobs | None = None
    token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET


class ChatCompletionChunk(msgspec.Struct, kw_only=True):
    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    choices: list[ChatChunkChoice]
    usage: Usage | msgspec.UnsetType | None = msgspec.UNSET
    system_fingerprint: str | None = None
    service_tier: str | msgspec.UnsetType = msgspec.UNSET
    prompt_token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET


class CompletionChoice(msgspec.Struct, kw_only=True):
    index: int
    text: str
    finish_reason: FinishReason | None = None
    logprobs: CompletionLogprobs | None = None
    token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET
    prompt_token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET
    prompt_logprobs: PromptLogprobs | msgspec.UnsetType = msgspec.UNSET


class Completion(msgspec.Struct, kw_only=True):
    """The answer of `/v1/completions`, and a chunk of its stream, in which `usage` may be absent or null."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage | msgspec.UnsetType | None = msgspec.UNSET
    system_fingerprint: str | None = None
    service_tier: str | msgspec.UnsetType = msgspec.UNSET


class ModelPrice(msgspec.Struct, kw_only=True):
    """Prices per token, and `minimum_nanousd` per request, in nano-dollars. The tier's discount is not yet deducted."""

    version: str
    prompt_nanousd: int
    cached_prompt_nanousd: int
    completion_nanousd: int
    adapter_token_nanousd: int
    """Surcharge per token."""
    minimum_nanousd: int
    """Minimum per request."""
    discount_basis_points: int


class ModelTier(msgspec.Struct, kw_only=True):
    """The caller's tier, with the tenant's own limits applied. Null means no limit."""

    name: str
    requests_per_minute: int | None
    tokens_per_minute: int | None
    concurrency: int | None
    tokens_per_day: int | None
    budget_nanousd_per_month: int | None
    context_tokens: int | None
    default_max_tokens: int


class ModelCard(msgspec.Struct, kw_only=True):
    """Only the gateway sends the fields after `parent`."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "tiergate"
    max_model_len: int | None = None
    root: str | None = None
    parent: str | None = None
    kind: str | msgspec.UnsetType = msgspec.UNSET
    """chat | embedding"""
    pools: list[str] | msgspec.UnsetType = msgspec.UNSET
    """The pools that may serve the model."""
    price: dict[str, ModelPrice] | msgspec.UnsetType = msgspec.UNSET
    """Pool -> price."""
    tier: ModelTier | msgspec.UnsetType = msgspec.UNSET


class ModelList(msgspec.Struct, kw_only=True):
    object: Literal["list"] = "list"
    data: list[ModelCard]
