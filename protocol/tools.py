"""The tool fields of a request: their checks, and what they mean for the prompt and the answer."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

import msgspec

from protocol.errors import ProtocolError
from protocol.messages import AssistantMessage, FunctionDefinition, FunctionMessage, Message, Tool, ToolMessage
from protocol.requests import AllowedToolsChoice, ChatCompletionRequest, NamedFunction, NamedToolChoice
from protocol.tool_schemas import check_tool_schema

MAX_TOOLS = 128
MAX_TOOLS_BYTES = 512 * 1024
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])


@dataclass(frozen=True, kw_only=True)
class Offer:
    """tools: shown to the model, which may call them. must_call: the answer must be a call.

    is_single: at most one call. is_limited: the conversation may show other tools, which the model must not call.
    """

    tools: tuple[Tool, ...]
    must_call: bool
    is_single: bool
    is_limited: bool = False

    @property
    def is_strict(self) -> bool:
        """Whether some call must follow its schema."""
        return self.must_call or any(tool.function.strict for tool in self.tools)

    @property
    def is_held(self) -> bool:
        """Whether calls must be constrained: by their schemas, or to some of the tools shown."""
        return self.is_strict or self.is_limited


def offer_of(request: ChatCompletionRequest) -> Offer | None:
    """The offer of a checked request without the legacy form; None if the model may not call any tool."""
    choice, tools = request.tool_choice, tuple(request.tools or ())
    if not tools or choice == "none":
        return None
    must_call = choice == "required"
    if isinstance(choice, NamedToolChoice):
        tools, must_call = tuple(tool for tool in tools if tool.function.name == choice.function.name), True
    elif isinstance(choice, AllowedToolsChoice):
        names = {allowed.function.name for allowed in choice.allowed_tools.tools}
        tools = tuple(tool for tool in tools if tool.function.name in names)
        must_call = choice.allowed_tools.mode == "required"
    is_single = request.parallel_tool_calls is False or isinstance(choice, NamedToolChoice)
    is_limited = isinstance(choice, AllowedToolsChoice)
    return Offer(tools=tools, must_call=must_call, is_single=is_single, is_limited=is_limited)


def check_tools(request: ChatCompletionRequest) -> None:
    """Raises ProtocolError naming the place."""
    if request.functions is not None or request.function_call is not None:
        _check_legacy(request)
        return
    if request.tools is None and request.tool_choice is None:
        return
    tools = request.tools or []
    _check_definitions([tool.function for tool in tools], "tools", ".function")
    _check_choice(request, {tool.function.name for tool in tools})


def _check_definitions(functions: Sequence[FunctionDefinition], field: str, inner: str) -> None:
    """inner: path of the function within an element of `field`."""
    if len(functions) > MAX_TOOLS:
        raise ProtocolError(f"{field}: {len(functions)} of them, at most {MAX_TOOLS} are taken", param=field)
    places: dict[str, int] = {}
    for i, function in enumerate(functions):
        place, name = f"{field}[{i}]{inner}", function.name
        if not _NAME.fullmatch(name):
            raise _refused(f"{place}.name", f"{name[:80]!r} is no name of 1 to 64 letters, digits, _ and -")
        if name in places:
            raise _refused(f"{place}.name", f"{name!r} is the name of {field}[{places[name]}] already")
        places[name] = i
        if function.parameters is not None:
            check_tool_schema(function.parameters, f"{place}.parameters")
    if functions and len(msgspec.json.encode(functions)) > MAX_TOOLS_BYTES:
        raise _refused(field, f"more than {MAX_TOOLS_BYTES} bytes together")


def _check_legacy(request: ChatCompletionRequest) -> None:
    if request.tools is not None or request.tool_choice is not None:
        raise _refused("functions", "send tools and tool_choice, or functions and function_call, not both")
    if not request.functions:
        raise _refused("function_call", "is only allowed with functions")
    _check_definitions(request.functions, "functions", "")
    choice = request.function_call
    if isinstance(choice, NamedFunction) and choice.name not in {each.name for each in request.functions}:
        raise _refused("function_call.name", f"none of the functions is named {choice.name[:80]!r}")


def _check_choice(request: ChatCompletionRequest, names: set[str]) -> None:
    choice = request.tool_choice
    if choice in (None, "none"):
        return
    if not names:
        if choice == "auto":
            return
        raise _refused("tool_choice", "is only allowed with tools")
    if isinstance(choice, NamedToolChoice) and choice.function.name not in names:
        raise _unknown(choice.function.name, "tool_choice.function.name")
    if isinstance(choice, AllowedToolsChoice):
        place = "tool_choice.allowed_tools.tools"
        if not choice.allowed_tools.tools:
            raise _refused(place, "name at least one tool")
        for i, allowed in enumerate(choice.allowed_tools.tools):
            if allowed.function.name not in names:
                raise _unknown(allowed.function.name, f"{place}[{i}].function.name")


def _unknown(name: str, place: str) -> ProtocolError:
    return _refused(place, f"none of the tools is named {name[:80]!r}")


def _refused(place: str, why: str) -> ProtocolError:
    return ProtocolError(f"{place}: {why}", param=place)


def check_conversation(messages: Sequence[Message]) -> None:
    """Check that calls and results match. Raises ProtocolError naming the place."""
    called: set[str] = set()
    unanswered: dict[str, str] = {}
    """Call id -> place, for the calls of the last assistant message that have no result yet."""
    functions: set[str] = set()
    for i, message in enumerate(messages):
        if isinstance(message, ToolMessage):
            unanswered.pop(message.tool_call_id, None)
        elif unanswered:
            _refuse_unanswered(unanswered)
        if isinstance(message, AssistantMessage):
            called |= _check_calls(message, i)
            unanswered = {call.id: f"messages[{i}].tool_calls[{j}]" for j, call in enumerate(message.tool_calls or ())}
            if message.function_call is not None:
                functions.add(message.function_call.name)
        elif isinstance(message, ToolMessage) and message.tool_call_id not in called:
            raise _refused(
                f"messages[{i}].tool_call_id",
                f"no call before it has the id {message.tool_call_id[:80]!r}; a result follows the assistant's message "
                "with its call",
            )
        elif isinstance(message, FunctionMessage) and message.name not in functions:
            raise _refused(f"messages[{i}].name", f"no call of {message.name[:80]!r} before it")
    if unanswered:
        _refuse_unanswered(unanswered)


def _refuse_unanswered(unanswered: Mapping[str, str]) -> NoReturn:
    call_id, place = next(iter(unanswered.items()))
    raise _refused(
        place,
        f"the call {call_id[:80]!r} has no result; after its message send one with role tool and its "
        "tool_call_id for each call",
    )


def _check_calls(message: AssistantMessage, i: int) -> set[str]:
    ids: set[str] = set()
    for j, call in enumerate(message.tool_calls or ()):
        place = f"messages[{i}].tool_calls[{j}]"
        if call.id in ids:
            raise _refused(f"{place}.id", f"{call.id[:80]!r} is another call's id")
        ids.add(call.id)
        _check_arguments(call.function.arguments, f"{place}.function.arguments")
    if message.function_call is not None:
        _check_arguments(message.function_call.arguments, f"messages[{i}].function_call.arguments")
    return ids


def _check_arguments(arguments: str, place: str) -> None:
    """Chat templates expect an object and would render anything else as text that no model was trained on."""
    try:
        if arguments:
            _OBJECT.decode(arguments)
    except (msgspec.MsgspecError, UnicodeEncodeError, RecursionError):
        raise _refused(place, "must be an object as a string of JSON") from None
