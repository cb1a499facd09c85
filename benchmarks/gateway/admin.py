"""Sets up tenants, keys, limits and prices at a running gateway through its admin API."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import httpx

from benchmarks.gateway.servers import ADMIN_KEY, POOLS, Gateway, model_of

_HIGH = {
    "requests_per_minute": 100_000_000,
    "tokens_per_minute": 10**12,
    "concurrency": 1_000_000,
    "tokens_per_day": 10**14,
    "budget_nanousd_per_month": 10**15,
}
"""All five limits are on, and none is ever reached."""


@dataclass(frozen=True)
class Admin:
    """The admin API, called with the bootstrap key."""

    origin: str

    def call(self, method: str, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        headers = {"Authorization": f"Bearer {ADMIN_KEY}"}
        reply = httpx.request(method, f"{self.origin}/admin/v1{path}", json=body, headers=headers, timeout=30)
        if reply.is_error:
            raise SystemExit(f"{method} {path}: {reply.status_code} {reply.text}")
        answer: dict[str, Any] = reply.json()
        return answer

    def set_limits(self, tier: str, limits: Mapping[str, int | None]) -> None:
        self.call("PATCH", f"/tiers/{tier}", limits)

    def set_price(self, model: str, *, prompt_nanousd: int, completion_nanousd: int) -> None:
        price = {"prompt_nanousd": prompt_nanousd, "completion_nanousd": completion_nanousd}
        self.call("POST", "/prices", {"model_id": model, **price})

    def make_key(self, tenant: str, *, tier: str) -> str:
        """Create a tenant, and return a key of it."""
        made = self.call("POST", "/tenants", {"name": tenant, "tier": tier})
        key = self.call("POST", "/keys", {"tenant_id": made["id"], "name": "k", "scopes": ["inference"]})
        return str(key["key"])


def make_full_key(gateway: Gateway, tenant: str) -> str:
    """A key with prices and with all limits on but high, so that every part of the request path does its work."""
    admin = Admin(gateway.origin)
    admin.set_limits("enterprise", _HIGH)
    for dialect in POOLS:
        admin.set_price(model_of(dialect), prompt_nanousd=100, completion_nanousd=400)
    return admin.make_key(tenant, tier="enterprise")
