"""The request and tenant that a log line belongs to, as context variables of the request's task."""

from contextvars import ContextVar

_request_id: ContextVar[str | None] = ContextVar("request_id", default=None)
_address: ContextVar[str | None] = ContextVar("address", default=None)
_tenant_id: ContextVar[str | None] = ContextVar("tenant_id", default=None)


def note_request(request_id: str) -> None:
    _request_id.set(request_id)


def note_address(address: str) -> None:
    """Note the client's address, as resolved through trusted proxies."""
    _address.set(address)


def note_tenant(tenant_id: str) -> None:
    _tenant_id.set(tenant_id)


def current_request_id() -> str | None:
    """None outside of requests; likewise `current_address`."""
    return _request_id.get()


def current_address() -> str | None:
    return _address.get()


def current() -> dict[str, str]:
    """Empty outside of requests."""
    found = {"request_id": _request_id.get(), "tenant_id": _tenant_id.get()}
    return {name: value for name, value in found.items() if value is not None}
