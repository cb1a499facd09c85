"""The fields that are read of a key, and the principal made from them."""

import math
from collections.abc import Sequence
from datetime import datetime
from functools import lru_cache
from ipaddress import ip_network
from typing import Any, NamedTuple
from uuid import UUID

from gateway.domain.limits import LimitScope, scope_limits
from gateway.domain.principal import Principal
from gateway.http.proxies import Networks

NEVER_S = math.inf


class KeyFields(NamedTuple):
    """A row of `queries.key_rows`."""

    prefix: str
    secret_hash: bytes
    pepper_id: bytes | None
    previous_until: datetime | None
    expires_at: datetime | None
    key_id: UUID
    scopes: Sequence[str]
    allowed_models: Sequence[str] | None
    allowed_networks: Sequence[str] | None
    limits: dict[str, int] | None
    tenant_id: UUID
    tenant_name: str
    tier: str
    suspended_at: datetime | None
    is_local_only: bool

    @property
    def ends_s(self) -> float:
        """The wall-clock time from which this secret is refused."""
        ends = [end.timestamp() for end in (self.previous_until, self.expires_at) if end is not None]
        return min(ends, default=NEVER_S)

    def principal(self) -> Principal:
        limits = scope_limits(self.limits)
        own: dict[str, Any] = self.limits or {}
        return Principal(
            self.tenant_id,
            self.tenant_name,
            self.key_id,
            self.tier,
            frozenset(self.scopes),
            self.is_local_only,
            allowed_models=None if self.allowed_models is None else frozenset(self.allowed_models),
            allowed_networks=None if self.allowed_networks is None else _networks(tuple(self.allowed_networks)),
            limit_scopes=() if limits is None else (LimitScope(f"key:{self.key_id}", limits),),
            context_tokens=own.get("context_tokens"),
            default_max_tokens=own.get("default_max_tokens"),
        )


@lru_cache(maxsize=10_000)
def _networks(texts: tuple[str, ...]) -> Networks:
    """Cached, because keys are read every second."""
    return tuple(map(ip_network, texts))
