"""Reasons why the engine refuses or gives up a request; the class is the meaning, rendered by the server."""

from protocol.context_window import CONTEXT_LENGTH_EXCEEDED, answer_too_long
from protocol.errors import ADAPTER_UNAVAILABLE, ErrorType, ProtocolError


class EngineError(ProtocolError):
    status = 500
    type: ErrorType = "server_error"


class InvalidRequest(EngineError):
    status = 400
    type: ErrorType = "invalid_request_error"


class PromptTooLong(InvalidRequest):
    def __init__(self, prompt_tokens: int, max_tokens: int, max_model_len: int) -> None:
        super().__init__(
            answer_too_long(max_model_len, prompt_tokens, max_tokens, "prompt"),
            # A prompt that leaves room for an answer can be saved by a lower max_tokens.
            param="max_tokens" if prompt_tokens < max_model_len else "prompt",
            code=CONTEXT_LENGTH_EXCEEDED,
        )
        self.prompt_tokens = prompt_tokens
        self.max_model_len = max_model_len


class NoTokenLeft(InvalidRequest):
    """The fault of neither the model nor the worker: a retry gets the same error."""

    def __init__(self, param: str | None) -> None:
        super().__init__(
            "the answer's format, allowed_token_ids, bad_words and min_tokens together leave no token to begin with",
            param=param,
            code="no_token_left",
        )


class GrammarLimit(InvalidRequest):
    """An answer hit a limit of the grammar engine before its first token."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"the grammar could not be followed: {reason}", code="grammar_limit")


class UnknownAdapter(EngineError):
    status = 404
    type: ErrorType = "not_found_error"

    def __init__(self, name: str) -> None:
        super().__init__(f"no adapter named {name!r} is loaded", param="model", code="model_not_found")
        self.name = name


class AdapterUnavailable(EngineError):
    """The adapter is known but could not be loaded; only the requests for it fail."""

    status = 503
    type: ErrorType = "overloaded_error"

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"the adapter {name!r} could not be loaded: {reason}", code=ADAPTER_UNAVAILABLE)


class QueueFull(EngineError):
    status = 503
    type: ErrorType = "overloaded_error"

    def __init__(self, retry_after_s: float, *, reason: str = "the waiting queue is full") -> None:
        super().__init__(f"{reason}, retry in {retry_after_s:.0f} s", code="saturated")
        self.retry_after_s = retry_after_s


class BestEffortShed(QueueFull):
    def __init__(self, retry_after_s: float) -> None:
        super().__init__(retry_after_s, reason="the worker is nearly full and takes no best-effort requests")


class EngineStopped(EngineError):
    status = 503
    type: ErrorType = "overloaded_error"

    def __init__(self) -> None:
        super().__init__("the worker is shutting down", code="shutting_down")


class DeadlineExceeded(EngineError):
    status = 504

    def __init__(self) -> None:
        super().__init__("the request's deadline passed before it was finished", code="deadline_exceeded")


class DeviceLost(Exception):
    """The model's device takes no more work; a new process may find it sound. One line naming the reason."""


class StepFailed(EngineError):
    """A step's computation broke; only the requests in that step fail."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"the model's computation failed: {reason}", code="step_failed")
