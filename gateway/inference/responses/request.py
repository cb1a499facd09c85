"""Translates a request for a response into the chat completion that answers it."""

from typing import Any

import msgspec

from gateway.http.errors import InvalidRequest
from gateway.inference.exchange import Exchange
from gateway.inference.responses.items import items_of, messages_of
from gateway.inference.validate import refuse_session
from protocol.checks import decode_body
from protocol.errors import ProtocolError
from protocol.requests import PlatformChatRequest
from protocol.responses_api import (
    ResponseNamedChoice,
    ResponsesRequest,
    ResponseToolChoice,
    decode_response,
)

RESPONSES_PATH = "/v1/responses"
_CHAT = msgspec.json.Decoder(PlatformChatRequest)
_SAME = (
    *("model", "temperature", "top_p", "parallel_tool_calls", "stream", "user", "service_tier", "metadata"),
    *("safety_identifier", "prompt_cache_key"),
)
_NAMES = {"max_tokens": "max_output_tokens", "response_format": "text.format", "reasoning_effort": "reasoning.effort"}


def validate_response(exchange: Exchange, body: bytes) -> ResponsesRequest:
    """Raises ProtocolError or InvalidRequest, naming the field."""
    refuse_session(exchange)
    return decode_response(body)


def chat_of(request: ResponsesRequest) -> tuple[bytes, PlatformChatRequest]:
    """The chat for the request's own input; the messages of `previous_response_id` are put in front later. Raises
    ProtocolError and InvalidRequest."""
    sent = msgspec.to_builtins(request)
    messages = messages_of(items_of(request.input))
    if request.instructions:
        messages = [{"role": "system", "content": request.instructions}, *messages]
    body: dict[str, Any] = {name: sent[name] for name in _SAME if sent[name] is not None} | {"messages": messages}
    if request.max_output_tokens is not None:
        body["max_tokens"] = request.max_output_tokens
    if request.stream:
        body["stream_options"] = {"include_usage": True}
    if request.tools:
        body["tools"] = [
            {"type": "function", "function": {k: v for k, v in tool.items() if k != "type" and v is not None}}
            for tool in sent["tools"]
        ]
    if request.tool_choice is not None:
        body["tool_choice"] = _tool_choice(request.tool_choice)
    if request.text is not None and request.text.format is not None:
        body["response_format"] = _format(request.text.format)
    if request.reasoning is not None and request.reasoning.effort is not None:
        body["reasoning_effort"] = request.reasoning.effort
    encoded = msgspec.json.encode(body)
    return encoded, decode_body(encoded, _CHAT)


def in_responses_words(error: ProtocolError | InvalidRequest) -> InvalidRequest:
    """Rename the fields in a chat's refusal to those that the client has sent."""
    param = error.param or ""
    name, dot, rest = param.partition(".")
    if param.startswith("messages"):
        return InvalidRequest(error.message.replace("messages", "input", 1), param="input", code=error.code)
    if param.startswith("tools["):
        return InvalidRequest(error.message, param=param.replace(".function", "", 1), code=error.code)
    return InvalidRequest(error.message, param=(_NAMES.get(name, name) + dot + rest) or None, code=error.code)


def _tool_choice(choice: ResponseToolChoice) -> Any:
    if isinstance(choice, str):
        return choice
    if isinstance(choice, ResponseNamedChoice):
        return _named(choice.name)
    allowed = {"mode": choice.mode, "tools": [_named(tool.name) for tool in choice.tools]}
    return {"type": "allowed_tools", "allowed_tools": allowed}


def _named(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


def _format(sent: dict[str, Any]) -> Any:
    if sent.get("type") != "json_schema":
        return sent
    return {"type": "json_schema", "json_schema": {name: value for name, value in sent.items() if name != "type"}}
