"""Converts OpenAI's older form of tools, `functions` and `function_call`, to the newer one."""

from typing import TypeVar

from msgspec.structs import replace

from protocol.messages import AssistantMessage, FunctionMessage, Message, Tool, ToolCall, ToolMessage
from protocol.requests import ChatCompletionRequest, NamedFunction, NamedToolChoice

RequestT = TypeVar("RequestT", bound=ChatCompletionRequest)


def is_legacy(request: ChatCompletionRequest) -> bool:
    """Whether the client uses the older form and expects calls as `function_call`."""
    return request.functions is not None


def modern(request: RequestT) -> RequestT:
    """The request with functions and their messages converted to tools. `functions` is kept, for `is_legacy`."""
    messages = _modern_messages(request.messages)
    if request.functions is None:
        return request if messages is None else replace(request, messages=messages)
    choice = request.function_call
    return replace(
        request,
        messages=messages or request.messages,
        tools=[Tool(function=each) for each in request.functions],
        tool_choice=NamedToolChoice(function=choice) if isinstance(choice, NamedFunction) else choice,
        function_call=None,
        parallel_tool_calls=False,
    )


def _modern_messages(messages: list[Message]) -> list[Message] | None:
    """The converted messages; None if none has the older form. A result belongs to the last call of its function."""
    for each in messages:
        if isinstance(each, FunctionMessage) or (isinstance(each, AssistantMessage) and each.function_call is not None):
            break
    else:
        return None
    ids: dict[str, str] = {}
    found: list[Message] = []
    for i, message in enumerate(messages):
        if isinstance(message, AssistantMessage) and message.function_call is not None:
            ids[message.function_call.name] = f"call_{i:05d}"[-9:]
            call = ToolCall(id=ids[message.function_call.name], function=message.function_call)
            found.append(replace(message, function_call=None, tool_calls=[*(message.tool_calls or ()), call]))
        elif isinstance(message, FunctionMessage):
            found.append(ToolMessage(content=message.content or "", tool_call_id=ids[message.name]))
        else:
            found.append(message)
    return found
