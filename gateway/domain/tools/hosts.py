"""The operator's list of servers that tools may run on."""

from collections.abc import Sequence
from urllib.parse import SplitResult, urlsplit

from gateway.http.errors import InvalidRequest


def check_host(url: str, allowed: Sequence[str]) -> None:
    """`allowed`: `host` or `*.domain`, with or without `:port`; empty: all. Raises InvalidRequest."""
    place = urlsplit(url)
    if allowed and not any(_fits(place, urlsplit(f"//{each}")) for each in allowed):
        raise InvalidRequest(f"url: tools may not be at {place.hostname!r}; ask the platform's operator", param="url")


def _fits(place: SplitResult, pattern: SplitResult) -> bool:
    host, wanted = (place.hostname or "").rstrip("."), pattern.hostname or ""
    port = place.port or (443 if place.scheme == "https" else 80)
    is_there = host.endswith(wanted[1:]) if wanted.startswith("*.") else host == wanted
    return is_there and pattern.port in (None, port)
