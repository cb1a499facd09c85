"""The request that a log line belongs to, known to everything that runs in the request's task."""

from contextvars import ContextVar

_caller: ContextVar[dict[str, str] | None] = ContextVar("caller", default=None)


def note_caller(*, request_id: str, tenant_id: str) -> None:
    _caller.set({"request_id": request_id} | ({"tenant_id": tenant_id} if tenant_id else {}))


def current() -> dict[str, str]:
    """Empty outside of requests."""
    return dict(_caller.get() or {})
