"""Why an answer cannot be constrained as wanted."""

from protocol.errors import ErrorType, ProtocolError


class BadGrammar(ProtocolError):
    """The requested format is invalid, unsupported, or too much work; refused before anything is queued."""

    def __init__(self, message: str, *, param: str | None = None, code: str | None = "unsupported_schema") -> None:
        super().__init__(message, param=param, code=code)


class CompilerBusy(ProtocolError):
    status = 503
    type: ErrorType = "overloaded_error"
    retry_after_s = 1.0

    def __init__(self) -> None:
        super().__init__("too many new schemas wait for being compiled, retry in 1 s", code="saturated")
