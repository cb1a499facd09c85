"""Refusing under overload where the headers are parsed, so that refusals leave room to serve."""

from collections.abc import Callable, Mapping
from typing import Any

from gateway.clock import utc_now
from gateway.http.answer import checked_block
from gateway.http.errors import Saturated
from gateway.http.front_door import Refusal
from gateway.http.rendering import error_body, error_headers, error_status
from gateway.inference.embeddings.handler import EMBEDDINGS_PATH
from gateway.inference.validate import CHAT_PATH, TEXT_PATH
from gateway.services import Services
from protocol.ids import new_request_id

_PATHS = frozenset({CHAT_PATH, TEXT_PATH, EMBEDDINGS_PATH})


def make_turn_away(services: Services) -> Callable[[Mapping[str, Any]], Refusal | None]:
    """Refuses what `OverloadGuard` would, of keys that are known. All others go the whole way."""

    def turn_away(scope: Mapping[str, Any]) -> Refusal | None:
        if not services.overload.is_shedding or scope["method"] != "POST" or scope["path"] not in _PATHS:
            return None
        headers = dict(scope["headers"])
        # A browser's page must be allowed to read its refusal, which is an application's business.
        if b"origin" in headers:
            return None
        principal = services.keyring.known(headers.get(b"authorization", b""))
        tier = services.catalog.current.tiers.get(principal.tier) if principal is not None else None
        if tier is None:
            return None
        try:
            services.overload.check(tier.priority)
        except Saturated as error:
            services.metrics.count_request(error_status(error), "", "")
            return _refusal(error)
        return None

    return turn_away


def _refusal(error: Saturated) -> Refusal:
    body = error_body(error)
    lines = {"x-request-id": new_request_id(utc_now()), **error_headers(error), "content-length": str(len(body))}
    block = "".join([f"{name}: {value}\r\n" for name, value in lines.items()])
    return Refusal(error_status(error), checked_block(block.encode(), num_lines=len(lines)), body)
