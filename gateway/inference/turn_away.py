"""Refusing requests under overload as soon as their headers are parsed, so that refusals cost little."""

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
    """Refuses the requests that `OverloadGuard` would refuse, if their key is cached here. All others take the normal
    path."""
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
        # A browser page may read its refusal only with CORS headers, which the application adds.
        if b"origin" in headers:
            return None
        principal = services.keyring.known(headers.get(b"authorization", b""))
        current = services.catalog.current
        tier = None if principal is None else current.tenant_tier(principal.tenant_text, principal.tier)
        if tier is None or not services.overload.turns_away(tier.priority):
            return None
        services.metrics.count_request(Saturated.status, ("", "", tier.name))
        services.metrics.count_error(Saturated.status, code, tier.name)
        services.refusals.count(principal, code, Saturated.status)
        return random.choice(refusals).make()

    return turn_away
