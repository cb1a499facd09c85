"""A client's request with `server_tools`, and the request to a member that is made from it in each round."""

from collections.abc import Sequence
from typing import Any

import msgspec

from gateway.domain.tools.models import ServerTool
from gateway.http.errors import InvalidRequest
from protocol.checks import check_request, decode_body, output_limit
from protocol.legacy import modern
from protocol.messages import FunctionDefinition, Tool
from protocol.requests import AllowedTools, AllowedToolsChoice, ChatCompletionRequest, PlatformChatRequest

_BODY = msgspec.json.Decoder(ChatCompletionRequest)
_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_LIST = msgspec.json.Decoder(list[Any])


def check_chat(request: PlatformChatRequest) -> None:
    """As `check_request`, with server tools counted among the tools. Raises ProtocolError or InvalidRequest."""
    names = request.server_tools
    if not names:
        return check_request(request)
    if request.functions is not None or request.function_call is not None:
        field = "function_call" if request.functions is None else "functions"
        raise InvalidRequest(f"{field} cannot be had together with server_tools; send tools instead", param=field)
    own = {tool.function.name for tool in request.tools or ()}
    for i, name in enumerate(names):
        if name in own or name in names[:i]:
            raise InvalidRequest(f"server_tools[{i}]: there are two tools {name!r}", param=f"server_tools[{i}]")
    offered = [Tool(function=FunctionDefinition(name=name or "-")) for name in names]
    check_request(msgspec.structs.replace(request, tools=[*(request.tools or ()), *offered]))
    for field, is_apart in (
        ("n", (request.n or 1) > 1),
        ("echo", request.echo),
        ("continue_final_message", request.continue_final_message),
        ("add_generation_prompt", request.add_generation_prompt is False),
    ):
        if is_apart:
            raise InvalidRequest(f"{field} cannot be had together with server_tools", param=field)


class Rounds:
    """A conversation that grows by each round's tool calls and their results."""

    def __init__(self, body: bytes, request: PlatformChatRequest) -> None:
        self._fields = _FIELDS.decode(body)
        self._request = request
        self._messages: list[Any] = [*msgspec.json.decode(self._fields["messages"], type=list[msgspec.Raw])]
        self._own_tools: list[Any] = msgspec.json.decode(self._fields["tools"]) or [] if request.tools else []
        self._model = request.model
        self._num_completed = 0
        """Tokens of all answers so far. The client's limit applies to their sum."""
        self.number = 0
        """The round's number, from 0."""

    @property
    def num_left(self) -> int | None:
        """Tokens that the client's own limit leaves; None if it set none."""
        limit = output_limit(self._request)
        return None if limit is None else limit - self._num_completed

    def body(self, offered: Sequence[ServerTool]) -> tuple[bytes, ChatCompletionRequest]:
        """The round's request for a member, as if the client had sent it."""
        fields: dict[str, Any] = dict(self._fields)
        fields.pop("server_tools")
        tools = [*self._own_tools, *map(_as_function, offered)]
        fields |= {"messages": self._messages, "tools": tools, "model": self._model}
        if not tools:
            for name in ("tools", "tool_choice", "parallel_tool_calls"):
                fields.pop(name, None)
        if self.number:
            fields.pop("min_tokens", None)
            if "tool_choice" in fields and self._request.tool_choice != "none":
                # The forced tool has been called; forcing it again in each round would never end.
                fields["tool_choice"] = self._free_choice(tools)
            if self.num_left is not None:
                fields.pop("max_completion_tokens", None)
                fields["max_tokens"] = self.num_left
        body = msgspec.json.encode(fields)
        return body, modern(decode_body(body, _BODY))

    def _free_choice(self, tools: Sequence[Any]) -> Any:
        """A tool choice that forces no call, but still allows only the tools that the client allowed."""
        choice = self._request.tool_choice
        if not isinstance(choice, AllowedToolsChoice):
            return "auto"
        offered = {tool["function"]["name"] for tool in tools}
        kept = [tool for tool in choice.allowed_tools.tools if tool.function.name in offered]
        return AllowedToolsChoice(allowed_tools=AllowedTools(mode="auto", tools=kept)) if kept else "none"

    def go_on(
        self, called: dict[str, Any], results: Sequence[dict[str, Any]], *, num_tokens: int, model: str | None
    ) -> None:
        """called: the assistant's message. model: the model for all further rounds; None keeps the current one."""
        self._messages += [called, *results]
        self._num_completed += num_tokens
        self._model = model or self._model
        self.number += 1


def _as_function(tool: ServerTool) -> dict[str, Any]:
    function = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    return {"type": "function", "function": function}
