"""A request's prompts as token ids: one code for the gateway, which counts them, and the worker, which runs them."""

from collections.abc import Sequence
from typing import Any

from protocol.errors import ProtocolError
from protocol.messages import Tool, UserMessage
from protocol.requests import ChatCompletionRequest, GenerationRequest, TokenizeRequest, list_prompts
from protocol.tools import offer_of
from text.bundle import Bundle
from text.chat import ChatOptions
from text.reasoning import ReasoningFormat, is_thinking_begun
from text.seal import Sealed

_MAX_CUT = 8
"""A text of which only the end is kept may be this many times as long as the limit: encoding it takes time."""


def kept_tokens(request: GenerationRequest, *, window: int, num_output: int) -> int | None:
    """How many of a prompt's last tokens are kept, None for all. num_output: tokens to leave for the answer."""
    if request.truncate_prompt_tokens == -1:
        return max(window - num_output, 1)
    return request.truncate_prompt_tokens


def encode_prompts(
    bundle: Bundle, request: GenerationRequest, *, kept: int | None, limit: int | None = None
) -> list[list[int]]:
    """The ids of each prompt. kept: from `kept_tokens`. Raises TextTooLong for a text that cannot fit into `limit`."""
    if limit is not None and kept is not None:
        limit *= _MAX_CUT
    prompts = _encode_all(bundle, request, limit)
    return prompts if kept is None else [prompt[-kept:] for prompt in prompts]


def render_messages(bundle: Bundle, request: ChatCompletionRequest | TokenizeRequest) -> Sealed:
    """The text of the request's messages and tools. Raises ProtocolError as `Bundle.render_chat` does."""
    return bundle.render_chat(request.messages or [], _shown_tools(request), _options(request))


def is_thinking_opened(bundle: Bundle, request: ChatCompletionRequest, reasoning: ReasoningFormat) -> bool:
    """Whether the template, with this request's arguments, makes every answer begin within thoughts."""
    options = ChatOptions(
        add_generation_prompt=True, continue_final_message=False, arguments=_options(request).arguments
    )
    try:
        rendered = bundle.render_chat([UserMessage(content="1")], None, options)
    except ProtocolError:
        return False
    return is_thinking_begun(reasoning, bundle.tokenizer.seal.open(rendered))


def _shown_tools(request: ChatCompletionRequest | TokenizeRequest) -> Sequence[Tool] | None:
    """The tools that the model may call."""
    if isinstance(request, TokenizeRequest):
        return request.tools
    offer = offer_of(request)
    return None if offer is None else offer.tools


def _encode_all(bundle: Bundle, request: GenerationRequest, limit: int | None) -> list[list[int]]:
    if isinstance(request, ChatCompletionRequest):
        rendered = render_messages(bundle, request)
        return [bundle.encode_rendered(rendered, limit=limit, add_special_tokens=bool(request.add_special_tokens))]
    adds = request.add_special_tokens is not False
    return [
        bundle.encode_text(prompt, limit=limit, add_special_tokens=adds) if isinstance(prompt, str) else prompt
        for prompt in list_prompts(request)
    ]


def _options(request: ChatCompletionRequest | TokenizeRequest) -> ChatOptions:
    is_continued = bool(request.continue_final_message)
    return ChatOptions(
        add_generation_prompt=not is_continued
        if request.add_generation_prompt is None
        else request.add_generation_prompt,
        continue_final_message=is_continued,
        arguments=_effort(request) | (request.chat_template_kwargs or {}),
    )


def _effort(request: ChatCompletionRequest | TokenizeRequest) -> dict[str, Any]:
    """The effort as templates know it: some take how much the model is to think, others only whether."""
    effort = request.reasoning_effort if isinstance(request, ChatCompletionRequest) else None
    if effort is None:
        return {}
    return {"reasoning_effort": effort} | ({"enable_thinking": False} if effort == "none" else {})
