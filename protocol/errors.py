"""OpenAI's error format and the codes we use; one definition for gateway and worker."""

from typing import Literal

import msgspec

ADAPTER_UNAVAILABLE = "adapter_unavailable"
"""Code of a worker that cannot load an adapter now. Other workers may be able to; other requests are not affected."""

ErrorType = Literal[
    "invalid_request_error",
    "authentication_error",
    "permission_error",
    "not_found_error",
    "conflict_error",
    "rate_limit_error",
    "server_error",
    "overloaded_error",
]


class ErrorDetail(msgspec.Struct, frozen=True, kw_only=True):
    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorBody(msgspec.Struct, frozen=True):
    """`{"error": {"message", "type", "param", "code"}}`, in responses and in streams alike."""

    error: ErrorDetail


class ProtocolError(Exception):
    """A request that cannot be accepted as sent. `status` is the HTTP status, `param` the field at fault."""

    status = 400
    type: ErrorType = "invalid_request_error"

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code

    def body(self) -> bytes:
        return encode_error(self.message, type=self.type, param=self.param, code=self.code)


def encode_error(message: str, *, type: ErrorType, param: str | None = None, code: str | None = None) -> bytes:
    return msgspec.json.encode(ErrorBody(ErrorDetail(message=message, type=type, param=param, code=code)))
