"""Access to `/metrics`: for clients that send its key or, if no key is set, only for clients on this machine."""

import hmac
import ipaddress

from pydantic import SecretStr
from starlette.requests import Request

from gateway.http.errors import Forbidden, Unauthenticated

_FORWARDED = ("forwarded", "x-forwarded-for", "x-real-ip")


def check_scraper(request: Request, key: SecretStr | None) -> None:
    """Raises Unauthenticated or Forbidden."""
    if key is not None:
        sent = request.headers.get("authorization", "").encode("latin-1")
        if not hmac.compare_digest(sent, f"Bearer {key.get_secret_value()}".encode()):
            raise Unauthenticated("send `Authorization: Bearer <the key in TIERGATE_METRICS_KEY>`")
        return
    # Requests that a proxy on this machine forwards come from loopback, too.
    is_passed_on = any(name in request.headers for name in _FORWARDED)
    if is_passed_on or not _is_loopback(request.client.host if request.client else ""):
        raise Forbidden("/metrics is open on the gateway's own machine only; set TIERGATE_METRICS_KEY and send it")


def _is_loopback(host: str) -> bool:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback
