"""Fields that a server would ignore silently, giving a different answer than asked for: those that only our workers
know, and features that the server's operator has declared missing."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

from gateway.http.errors import InvalidRequest
from protocol.answer_format import ABSENT
from protocol.requests import ChatCompletionRequest, CompletionRequest, GenerationRequest
from protocol.tools import offer_of
from router.fleet import Pool

_OWN_FIELDS = (
    *("truncate_prompt_tokens", "add_special_tokens", "allowed_token_ids", "bad_words"),
    *("skip_special_tokens", "include_stop_str_in_output", "return_token_ids", "return_tokens_as_token_ids"),
    *("prompt_logprobs", "logprob_token_ids"),
    *("chat_template_kwargs", "add_generation_prompt", "continue_final_message"),
    *("structured_outputs", "guided_json", "guided_regex", "guided_choice", "guided_grammar"),
    "functions",
)


class _Fields(NamedTuple):
    """read: returns the values of all fields at once. unset: what `read` returns if none of them is set."""

    names: Sequence[str]
    read: Callable[[GenerationRequest], tuple[Any, ...]]
    unset: tuple[Any, ...]


def _own_fields(kind: type[GenerationRequest]) -> _Fields:
    names = [name for name in _OWN_FIELDS if name in kind.__struct_fields__]
    return _Fields(names, attrgetter(*names), tuple(ABSENT if name == "guided_json" else None for name in names))


_IN_CHATS, _IN_TEXTS = _own_fields(ChatCompletionRequest), _own_fields(CompletionRequest)


def own_field_of(request: GenerationRequest) -> str | None:
    """The first field set in the request that only our own workers know."""
    if isinstance(request, ChatCompletionRequest) and request.echo:
        return "echo"
    response_format = getattr(request, "response_format", None)
    if response_format is not None and response_format.type == "structural_tag":
        return "response_format"
    fields = _IN_CHATS if isinstance(request, ChatCompletionRequest) else _IN_TEXTS
    values = fields.read(request)
    if values == fields.unset:
        return None
    return next((name for name, value in zip(fields.names, values, strict=True) if value not in (None, ABSENT)), None)


def check_own_members(pools: Iterable[Pool], field: str) -> None:
    """Raises InvalidRequest if the request may reach a server that does not know the field."""
    for pool in pools:
        if any(member.engine != "tiergate" for member in pool.members):
            raise InvalidRequest(
                f"the servers of {pool.model_id!r} do not know {field}; leave it out", param=field, code="unsupported"
            )


def check_features(pools: Iterable[Pool], request: GenerationRequest) -> None:
    """Raises InvalidRequest if the request may reach a server that lacks a feature it asks for."""
    for pool in pools:
        if pool.lacks:
            for feature, field in _features_of(request):
                if feature in pool.lacks:
                    named = field if feature == field else f"{feature} in {field}"
                    raise InvalidRequest(
                        f"the servers of {pool.model_id!r} do not support {named}", param=field, code="unsupported"
                    )


def _features_of(request: GenerationRequest) -> Iterator[tuple[str, str]]:
    """The features that the request needs, each with the field that asks for it."""
    if request.logprobs is not None and request.logprobs is not False:
        yield "logprobs", "logprobs"
    if not isinstance(request, ChatCompletionRequest):
        return
    if request.reasoning_effort is not None:
        yield "reasoning_effort", "reasoning_effort"
    if request.response_format is not None:
        yield request.response_format.type, "response_format"
    offer = offer_of(request)
    if offer is not None:
        yield "tools", "tools"
        if offer.must_call:
            yield "tool_choice", "tool_choice"
        if request.parallel_tool_calls is False:
            yield "parallel_tool_calls", "parallel_tool_calls"
        if any(tool.function.strict for tool in offer.tools):
            yield "strict", "tools"
