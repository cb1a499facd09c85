"""Refusing under overload where the headers are parsed, so that refusals leave room to serve."""

import random
from collections.abc import Callable, Mapping
from typing import Any

from gateway.http.errors import Saturated
from gateway.http.refusal import Refusal, RepeatedRefusal
from gateway.inference.embeddings.handler import EMBEDDINGS_PATH
from gateway.inference.validate import CHAT_PATH, TEXT_PATH
from gateway.overload import RETRY_AFTER_S, overloaded
from gateway.services import Services

_PATHS = frozenset({CHAT_PATH, TEXT_PATH, EMBEDDINGS_PATH})


def make_turn_away(services: Services) -> Callable[[Mapping[str, Any]], Refusal | None]:
    """Refuses what `OverloadGuard` would, of keys that are known. All others go the whole way."""
    refusals = [RepeatedRefusal(overloaded(retry_after_s)) for retry_after_s in RETRY_AFTER_S]
    code = overloaded(1).code

    def turn_away(scope: Mapping[str, Any]) -> Refusal | None:
        if scope["method"] != "POST" or scope["path"] not in _PATHS:
            return None
        refusal = refused(scope) if services.overload.is_shedding else None
        if refusal is None:
            services.overload.note_arrival()
        return refusal

    def refused(scope: Mapping[str, Any]) -> Refusal | None:
        headers = dict(scope["headers"])
        # A browser's page must be allowed to read its refusal, which is an application's business.
        if b"origin" in headers:
            return None
        principal = services.keyring.known(headers.get(b"authorization", b""))
        current = services.catalog.current
        tier = None if principal is None else current.tenant_tier(principal.tenant_text, principal.tier)
        if tier is None or not services.overload.refuses(tier.priority):
            return None
        services.metrics.count_request(Saturated.status, ("", "", tier.name))
        services.metrics.count_error(Saturated.status, code, tier.name)
        services.refusals.count(principal, code, Saturated.status)
        return random.choice(refusals).make()

    return turn_away
