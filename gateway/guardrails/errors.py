from collections.abc import Sequence

from gateway.http.errors import GatewayError, InvalidRequest


class ContentFiltered(InvalidRequest):
    """A guardrail blocked the request."""

    def __init__(self, guardrail: str, categories: Sequence[str], *, param: str) -> None:
        named = f" (categories: {', '.join(categories)})" if categories else ""
        message = f"{param}: blocked by the guardrail {guardrail!r}{named}; change the text"
        super().__init__(message, param=param, code="content_filter")


class GuardrailUnavailable(GatewayError):
    """A guardrail that fails closed could not check. is_tenants: it belongs to the tenant, who answers for it."""

    status, type, code = 503, "server_error", "guardrail_unavailable"

    def __init__(self, guardrail: str, problem: str, *, is_tenants: bool) -> None:
        super().__init__(f"the guardrail {guardrail!r} could not check this request: {problem}; try again later")
        self.is_tenants = is_tenants

    def headers(self) -> dict[str, str]:
        return {"retry-after": "1"}
