"""A tier's limits, seen from outside."""

import time
from typing import Any

import httpx
import pytest

from tests.support.platform import Platform

BODY = {"model": "small", "messages": [{"role": "user", "content": "Hi!"}], "max_tokens": 1}


@pytest.mark.long
def test_the_61st_request_in_a_minute_is_refused_and_passes_after_the_window(platform: Platform) -> None:
    key = _new_tenant_key(platform, tier="free", limits={"requests_per_minute": 60, "tokens_per_minute": None})
    with httpx.Client(base_url=platform.base_url, headers={"Authorization": f"Bearer {key}"}, timeout=30) as client:
        started = time.monotonic()
        for used in range(1, 61):
            reply = client.post("/chat/completions", json=BODY)
            assert reply.status_code == 200, reply.text
            assert reply.headers["x-ratelimit-limit-requests"] == "60"
            assert int(reply.headers["x-ratelimit-remaining-requests"]) >= 60 - used
        if time.monotonic() - started > 50:
            pytest.fail("the machine is too slow to send 60 requests within a minute")
        refused = client.post("/chat/completions", json=BODY)
        assert refused.status_code == 429
        assert refused.json()["error"]["code"] == "requests_per_minute"
        assert refused.headers["x-ratelimit-remaining-requests"] == "0"
        retry_after_s = float(refused.headers["retry-after"])
        assert 0 < retry_after_s <= 60
        time.sleep(retry_after_s)  # the claim is about time itself
        assert client.post("/chat/completions", json=BODY).status_code == 200


def _new_tenant_key(platform: Platform, *, tier: str, limits: dict[str, Any]) -> str:
    with platform.admin() as admin:
        admin.patch(f"/tiers/{tier}", json=limits).raise_for_status()
        tenant = admin.post("/tenants", json={"name": f"limits-{time.time_ns()}", "tier": tier}).raise_for_status()
        key = admin.post("/keys", json={"tenant_id": tenant.json()["id"], "name": "k", "scopes": ["inference"]})
        return str(key.raise_for_status().json()["key"])
