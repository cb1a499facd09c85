"""Bodies of `/v1/chat/completions`, `/v1/completions`, `/tokenize` and `/detokenize`.

OpenAI's fields plus those that vLLM made customary. An unknown field is an error, as at OpenAI: a mistyped
`max_token` must not be ignored in silence. Ranges stand on the types; what a type cannot say is in `checks.py`.
"""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from protocol.messages import Message, Tool

PositiveInt = Annotated[int, Meta(ge=1)]
TokenId = Annotated[int, Meta(ge=0, le=2**32 - 1)]
"""As wide as tokenizers take; whether it is in the vocabulary only the model's server knows."""
Penalty = Annotated[float, Meta(ge=-2, le=2)]
StopString = Annotated[str, Meta(min_length=1, max_length=1000)]
MAX_N = 16
"""Answers to one prompt."""
MAX_CHOICES = 128
"""Answers to one request: n for each of its prompts."""
PRIORITIES = {"enterprise": 0, "pro": 1, "free": 2, "batch": 3}


class StreamOptions(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    include_usage: bool = False
    continuous_usage_stats: bool = False
    include_obfuscation: bool | None = None


class ResponseFormat(msgspec.Struct, kw_only=True):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: dict[str, Any] | None = None


class NamedFunction(msgspec.Struct):
    name: str


class NamedToolChoice(msgspec.Struct):
    type: Literal["function"]
    function: NamedFunction


class SamplingFields(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What chat and text completions share. None means: the default of the server or of the tier."""

    model: Annotated[str, Meta(min_length=1, max_length=200)]
    max_tokens: PositiveInt | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    n: Annotated[int, Meta(ge=1, le=MAX_N)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    stop: StopString | list[StopString] | None = None
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    logit_bias: Annotated[dict[str, Annotated[float, Meta(ge=-100, le=100)]], Meta(max_length=1024)] | None = None
    user: Annotated[str, Meta(max_length=512)] | None = None
    # What vLLM made customary.
    top_k: Annotated[int, Meta(ge=-1)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Meta(ge=0.01, le=10)] | None = None
    min_tokens: Annotated[int, Meta(ge=0)] | None = None
    stop_token_ids: Annotated[list[TokenId], Meta(max_length=128)] | None = None
    ignore_eos: bool | None = None
    # Honoured by a worker only together with the worker key; the gateway drops a client's.
    priority: Annotated[int, Meta(ge=0, le=3)] | None = None
    cache_salt: Annotated[str, Meta(max_length=200)] | None = None
    continue_from: list[list[TokenId]] | None = None
    """Of each answer the ids that it has already, from another replica; a stream goes on after them."""
    # Accepted for compatibility; they change nothing here.
    metadata: dict[str, str] | None = None
    store: bool | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None


class ChatCompletionRequest(SamplingFields, kw_only=True, forbid_unknown_fields=True):
    messages: Annotated[list[Message], Meta(min_length=1)]
    max_completion_tokens: PositiveInt | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    response_format: ResponseFormat | None = None
    tools: list[Tool] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedToolChoice | None = None
    parallel_tool_calls: bool | None = None


class CompletionRequest(SamplingFields, kw_only=True, forbid_unknown_fields=True):
    # OpenAI's four forms; msgspec allows one list type in a union, so that checks.py tells mixed lists apart.
    prompt: str | list[str | TokenId | list[TokenId]]
    # 0 only with echo: the prompt's own log-probabilities.
    max_tokens: Annotated[int, Meta(ge=0)] | None = None
    best_of: Annotated[int, Meta(ge=1, le=20)] | None = None
    echo: bool | None = None
    logprobs: Annotated[int, Meta(ge=0, le=5)] | None = None
    suffix: str | None = None


class TokenizeRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """vLLM's `/tokenize`: either `prompt` or `messages`."""

    model: str | None = None
    prompt: str | None = None
    messages: list[Message] | None = None
    tools: list[Tool] | None = None
    add_generation_prompt: bool = True
    add_special_tokens: bool = True


class DetokenizeRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    model: str | None = None
    tokens: list[TokenId]


GenerationRequest = ChatCompletionRequest | CompletionRequest


def list_prompts(request: CompletionRequest) -> list[str | list[int]]:
    """The prompts of a request that `check_request` accepted, each as it was sent: text or token ids."""
    if isinstance(request.prompt, str):
        return [request.prompt]
    if isinstance(request.prompt[0], int):
        return [[token_id for token_id in request.prompt if isinstance(token_id, int)]]
    return [prompt for prompt in request.prompt if not isinstance(prompt, int)]
