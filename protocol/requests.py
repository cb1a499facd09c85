"""Bodies of `/v1/chat/completions`, `/v1/completions`, `/tokenize` and `/detokenize`.

OpenAI's fields plus those that vLLM made customary. An unknown field is an error, as at OpenAI: a mistyped `max_token`
must not be silently ignored. Types declare the ranges; rules that a type cannot express are in `checks.py`.
"""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from protocol.answer_format import ResponseFormat, StructuredOutputs
from protocol.messages import Content, FunctionDefinition, Message, Tool

PositiveInt = Annotated[int, Meta(ge=1)]
TokenId = Annotated[int, Meta(ge=0, le=2**32 - 1)]
"""The widest range that tokenizers accept; only the model's server knows whether an id is in the vocabulary."""
Penalty = Annotated[float, Meta(ge=-2, le=2)]
StopString = Annotated[str, Meta(min_length=1, max_length=1000)]
UserName = Annotated[str, Meta(max_length=512, pattern=r"^[^\x00]*$")]
"""Without NUL, where the databases that count a user's usage would end the name."""
Metadata = Annotated[
    dict[Annotated[str, Meta(max_length=64)], Annotated[str, Meta(max_length=512)]], Meta(max_length=16)
]
ServiceTier = Literal["auto", "default", "flex", "priority", "fast"]
UsedServiceTier = Literal["default", "flex", "priority"]
TemplateArguments = Annotated[
    dict[Annotated[str, Meta(pattern="^[A-Za-z_][A-Za-z0-9_]{0,63}$")], Any], Meta(max_length=64)
]
"""Variables for the chat template, such as `enable_thinking`: plain JSON."""
MAX_CHOICES = 128
"""Answers to one request: n for each of its prompts."""


class StreamOptions(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    include_usage: bool = False
    continuous_usage_stats: bool = False
    include_obfuscation: bool | None = None


class Prediction(msgspec.Struct, forbid_unknown_fields=True):
    type: Literal["content"]
    content: Content


class NamedFunction(msgspec.Struct, forbid_unknown_fields=True):
    name: str


class NamedToolChoice(msgspec.Struct, tag_field="type", tag="function", forbid_unknown_fields=True):
    function: NamedFunction


class AllowedFunction(msgspec.Struct, forbid_unknown_fields=True):
    type: Literal["function"]
    function: NamedFunction


class AllowedTools(msgspec.Struct, forbid_unknown_fields=True):
    mode: Literal["auto", "required"]
    tools: list[AllowedFunction]


class AllowedToolsChoice(msgspec.Struct, tag_field="type", tag="allowed_tools", forbid_unknown_fields=True):
    allowed_tools: AllowedTools


class SamplingFields(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The fields that chat and text completions share. None means the default of the server or of the tier."""

    model: Annotated[str, Meta(min_length=1, max_length=200)]
    max_tokens: PositiveInt | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    n: Annotated[int, Meta(ge=1, le=MAX_CHOICES)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    stop: StopString | list[StopString] | None = None
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    logit_bias: Annotated[dict[str, Annotated[float, Meta(ge=-100, le=100)]], Meta(max_length=1024)] | None = None
    user: UserName | None = None
    # Fields that vLLM made customary.
    top_k: Annotated[int, Meta(ge=-1)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Meta(ge=0.01, le=10)] | None = None
    min_tokens: Annotated[int, Meta(ge=0)] | None = None
    stop_token_ids: Annotated[list[TokenId], Meta(max_length=128)] | None = None
    ignore_eos: bool | None = None
    truncate_prompt_tokens: Annotated[int, Meta(ge=-1)] | None = None
    """Number of a prompt's last tokens to keep; -1: as many as leave room for the answer."""
    add_special_tokens: bool | None = None
    """Whether the tokenizer adds its special tokens around a text. False by default for a chat, whose template has
    written them."""
    allowed_token_ids: Annotated[list[TokenId], Meta(min_length=1, max_length=2**18)] | None = None
    bad_words: Annotated[list[StopString], Meta(max_length=128)] | None = None
    skip_special_tokens: bool | None = None
    include_stop_str_in_output: bool | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    prompt_logprobs: Annotated[int, Meta(ge=-1)] | None = None
    """Number of likeliest tokens shown for each prompt token; -1, as in `top_logprobs`: the whole vocabulary."""
    logprob_token_ids: Annotated[list[TokenId], Meta(min_length=1, max_length=1024)] | None = None
    """Token ids whose log-probabilities are shown with each token, instead of the likeliest."""
    structured_outputs: StructuredOutputs | None = None
    # vLLM's earlier names for `structured_outputs`.
    guided_json: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw)
    guided_regex: Annotated[str, Meta(min_length=1)] | None = None
    guided_choice: Annotated[list[str], Meta(min_length=1)] | None = None
    guided_grammar: Annotated[str, Meta(min_length=1)] | None = None
    guided_whitespace_pattern: str | None = None
    # Workers honour the next fields only together with the worker key; the gateway drops a client's. Priorities: 0 is
    # enterprise, 1 pro, 2 free and 3 batch.
    priority: Annotated[int, Meta(ge=0, le=3)] | None = None
    cache_salt: Annotated[str, Meta(max_length=200)] | None = None
    continue_from: list[list[TokenId]] | None = None
    """The ids of each answer that another replica has already generated; a stream continues after them."""
    service_tier: ServiceTier | None = None
    # These have no effect (`protocol.openai_fields`).
    metadata: Metadata | None = None
    store: bool | None = None
    safety_identifier: Annotated[str, Meta(max_length=512)] | None = None
    prompt_cache_key: Annotated[str, Meta(max_length=512)] | None = None


class ChatCompletionRequest(SamplingFields, kw_only=True, forbid_unknown_fields=True):
    messages: Annotated[list[Message], Meta(min_length=1)]
    max_completion_tokens: PositiveInt | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=-1)] | None = None
    response_format: ResponseFormat | None = None
    tools: list[Tool] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedToolChoice | AllowedToolsChoice | None = None
    parallel_tool_calls: bool | None = None
    functions: list[FunctionDefinition] | None = None
    """The older form of `tools`; `protocol.legacy` maps it."""
    function_call: Literal["none", "auto"] | NamedFunction | None = None
    reasoning_effort: Annotated[str, Meta(max_length=32)] | None = None
    """For chat templates that use it."""
    # The allowed values have no effect. Other values are refused by name, as are fields that can only be null
    # (`protocol.openai_fields`).
    modalities: Annotated[list[Literal["text"]], Meta(min_length=1)] | None = None
    verbosity: Literal["medium"] | None = None
    prompt_cache_retention: Literal["in_memory"] | None = None
    prediction: Prediction | None = None
    audio: None = None
    moderation: None = None
    web_search_options: None = None
    prompt_cache_options: None = None
    # Fields that vLLM made customary.
    add_generation_prompt: bool | None = None
    """False: omit the mark that opens the answer. Default: true, unless `continue_final_message` is set."""
    continue_final_message: bool | None = None
    """The answer continues the last message, which must be an assistant's and is left open."""
    echo: bool | None = None
    """The answer begins with the text of the last message, if that is an assistant's."""
    chat_template_kwargs: TemplateArguments | None = None


class PlatformChatRequest(ChatCompletionRequest, kw_only=True, forbid_unknown_fields=True):
    """A chat completion request as the gateway takes it. `server_tools` is not passed on to members."""

    server_tools: Annotated[list[Annotated[str, Meta(max_length=64)]], Meta(max_length=32)] | None = None
    """Names of tools that the platform calls itself (docs/server-tools.md)."""


class CompletionRequest(SamplingFields, kw_only=True, forbid_unknown_fields=True):
    # OpenAI's four forms. msgspec allows only one list type in a union, so checks.py rejects mixed lists.
    prompt: str | list[str | TokenId | list[TokenId]]
    # 0 is allowed only with echo, to get the prompt's own log-probabilities.
    max_tokens: Annotated[int, Meta(ge=0)] | None = None
    best_of: Annotated[int, Meta(ge=1, le=20)] | None = None
    echo: bool | None = None
    logprobs: Annotated[int, Meta(ge=0)] | None = None
    suffix: str | None = None


class TokenizeRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """As at vLLM's `/tokenize`. Send either `prompt` or `messages`."""

    model: str | None = None
    prompt: str | None = None
    messages: list[Message] | None = None
    tools: list[Tool] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: TemplateArguments | None = None
    add_special_tokens: bool | None = None
    """Default: true for a prompt, false for messages."""
    return_token_strs: bool | None = None


class DetokenizeRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    model: str | None = None
    tokens: list[TokenId]


GenerationRequest = ChatCompletionRequest | CompletionRequest


def used_service_tier(request: SamplingFields) -> UsedServiceTier | None:
    """The service tier as shown in answers; None if the request does not set one."""
    match request.service_tier:
        case "auto" | "default":
            return "default"
        case "fast":
            # OpenAI's other name for `priority`.
            return "priority"
        case other:
            return other


def list_prompts(request: CompletionRequest) -> list[str | list[int]]:
    """The prompts of a request that `check_request` accepted, each as it was sent: text or token ids."""
    if isinstance(request.prompt, str):
        return [request.prompt]
    if isinstance(request.prompt[0], int):
        return [[token_id for token_id in request.prompt if isinstance(token_id, int)]]
    return [prompt for prompt in request.prompt if not isinstance(prompt, int)]
