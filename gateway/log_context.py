"""Whose request a log line belongs to: known to whatever runs in the request's task."""

from contextvars import ContextVar

_request_id: ContextVar[str | None] = ContextVar("request_id", default=None)
_tenant_id: ContextVar[str | None] = ContextVar("tenant_id", default=None)


def note_request(request_id: str) -> None:
    _request_id.set(request_id)


def note_tenant(tenant_id: str) -> None:
    _tenant_id.set(tenant_id)


def current() -> dict[str, str]:
    """Empty outside of requests."""
    found = {"request_id": _request_id.get(), "tenant_id": _tenant_id.get()}
    return {name: value for name, value in found.items() if value is not None}
