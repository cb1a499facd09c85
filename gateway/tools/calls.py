"""A tool call and its result."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import msgspec

from gateway.domain.principal import Principal
from gateway.domain.tools.models import ServerTool

if TYPE_CHECKING:
    from gateway.tracing.spans import RequestTrace

CallStatus = (
    Literal["ok", "bad_arguments", "busy", "no_credential", "http_error", "not_json", "cancelled"]
    | Literal["refused", "redirect", "timeout", "too_large", "failed"]
)
"""The second line is `gateway.http.outbound.Reason`; http_error: the tool answered with a status outside 200 to 299."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    tool: ServerTool
    arguments: str
    """The arguments as the model wrote them."""
    principal: Principal
    request_id: str
    """The id of the round in which the model asked for the call."""
    call_id: str
    """Our own id for the call, so that it is safe in a header."""
    trace: "RequestTrace | None" = None


@dataclass(frozen=True, slots=True)
class ToolResult:
    status: CallStatus
    text: str
    """For the model: the tool's JSON, or JSON that says what went wrong."""
    http_status: int | None = None
    num_bytes: int = 0
    """The size of the tool's answer."""


def failure(status: CallStatus, words: str, *, http_status: int | None = None) -> ToolResult:
    return ToolResult(status, msgspec.json.encode({"error": words}).decode(), http_status)
