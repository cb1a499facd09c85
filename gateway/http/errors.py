"""The gateway's refusals and failures. The class is the meaning; each class has its HTTP status."""

import math
from collections.abc import Mapping

from protocol.errors import ErrorType


class GatewayError(Exception):
    status = 500
    type: ErrorType = "server_error"
    code: str | None = "internal_error"

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code or type(self).code

    def headers(self) -> dict[str, str]:
        return {}


class InvalidRequest(GatewayError):
    status, type, code = 400, "invalid_request_error", None


class Unauthenticated(GatewayError):
    status, type, code = 401, "authentication_error", "invalid_api_key"

    def headers(self) -> dict[str, str]:
        return {"www-authenticate": "Bearer"}


class Forbidden(GatewayError):
    status, type, code = 403, "permission_error", "permission_denied"


class NotFound(GatewayError):
    status, type, code = 404, "not_found_error", "not_found"


class ModelNotFound(NotFound):
    code = "model_not_found"

    def __init__(self, model: str) -> None:
        super().__init__(
            f"the model {model!r} does not exist or is not yours; GET /v1/models lists what there is", param="model"
        )


class UnsupportedEndpoint(NotFound):
    code = "unsupported_endpoint"

    def __init__(self, path: str) -> None:
        super().__init__(f"{path} is part of OpenAI's API but is not served here")


class MethodNotAllowed(GatewayError):
    status, type, code = 405, "invalid_request_error", "method_not_allowed"


class BodyTimeout(GatewayError):
    status, type, code = 408, "invalid_request_error", "body_timeout"


class HeadTimeout(GatewayError):
    status, type, code = 408, "invalid_request_error", "head_timeout"

    def __init__(self, head_s: float) -> None:
        super().__init__(f"the headers did not arrive within {head_s:g} s")


class Conflict(GatewayError):
    status, type, code = 409, "conflict_error", "conflict"


class BodyTooLarge(GatewayError):
    status, type, code = 413, "invalid_request_error", "body_too_large"

    def __init__(self, max_body_bytes: int) -> None:
        super().__init__(f"the body is larger than {max_body_bytes} bytes; send less")


class UnsupportedMediaType(GatewayError):
    status, type, code = 415, "invalid_request_error", "unsupported_media_type"


class Unprocessable(GatewayError):
    status, type, code = 422, "invalid_request_error", "unprocessable"


class HeadersTooLarge(GatewayError):
    status, type, code = 431, "invalid_request_error", "headers_too_large"

    def __init__(self, max_bytes: int, max_fields: int) -> None:
        super().__init__(f"send at most {max_fields} headers and {max_bytes} bytes of them, the URL included")


class _RetryLater(GatewayError):
    def __init__(self, message: str, *, retry_after_s: float, code: str | None = None) -> None:
        super().__init__(message, code=code)
        self.retry_after_s = retry_after_s

    def headers(self) -> dict[str, str]:
        # Whole seconds (RFC 9110), rounded up so that the client's next try is not a moment too early.
        return {"retry-after": str(max(1, math.ceil(self.retry_after_s)))}


class LimitReached(_RetryLater):
    """code: the limit that was reached. scope: whose limit it is: `tenant`, `key:ID` or `user:ID`. can_pass: whether
    the same request can succeed later."""

    status, type = 429, "rate_limit_error"

    def __init__(
        self,
        message: str,
        *,
        retry_after_s: float,
        code: str,
        extra_headers: Mapping[str, str],
        scope: str = "tenant",
        can_pass: bool = True,
    ) -> None:
        super().__init__(message, retry_after_s=retry_after_s, code=code)
        self.scope = scope
        self.extra_headers = extra_headers
        self.can_pass = can_pass

    def headers(self) -> dict[str, str]:
        return {**super().headers(), **self.extra_headers}


class Saturated(_RetryLater):
    status, type, code = 503, "overloaded_error", "saturated"


class Unavailable(_RetryLater):
    status, type, code = 503, "server_error", "unavailable"


class UpstreamFailed(GatewayError):
    """A worker failed. Any part of its answer sent before that has been passed on."""

    status, type, code = 502, "server_error", "upstream_failed"


class UpstreamRefused(GatewayError):
    """A worker refused the request. Its status and its body, in OpenAI's format, are the answer."""

    code = "upstream_refused"

    def __init__(self, status: int, body: bytes) -> None:
        super().__init__(f"the worker answered {status}")
        self.status = status
        self.body = body
