"""Two administrators at once: what is checked holds until it is committed, on SQLite and on PostgreSQL."""

import asyncio
from collections import Counter
from collections.abc import Coroutine
from typing import Any
from uuid import UUID

from gateway.database import Sessions
from gateway.domain.adapters.service import create_adapter
from gateway.domain.keys.queries import usable_admin_keys
from gateway.domain.keys.service import create_key, revoke_key
from gateway.domain.models.service import declare_model, delete_model
from gateway.domain.principal import Principal
from gateway.domain.tenants.service import change_tenant, create_tenant
from gateway.domain.tiers.service import change_tier
from gateway.http.errors import GatewayError
from tests.gateway.domain.conftest import NOW, PEPPER

ROUNDS = 10


async def statuses(*changes: Coroutine[Any, Any, object]) -> Counter[int]:
    """How many of the concurrent changes passed (200), and how many were refused how."""
    outcomes = await asyncio.gather(*changes, return_exceptions=True)
    for outcome in outcomes:
        if isinstance(outcome, BaseException) and not isinstance(outcome, GatewayError):
            raise outcome
    return Counter(outcome.status if isinstance(outcome, GatewayError) else 200 for outcome in outcomes)


async def test_of_a_model_and_adapters_that_want_one_name_one_gets_it(sessions: Sessions, admin: Principal) -> None:
    await declare_model(sessions, admin, model_id="race-base", pool="race-pool", context_window=5, kind="chat", now=NOW)
    tenant = await create_tenant(sessions, admin, name="race", tier="enterprise", now=NOW)

    for number in range(ROUNDS):
        name = f"race-{number}"
        model = declare_model(
            sessions, admin, model_id=name, pool=f"pool-{number}", context_window=5, kind="chat", now=NOW
        )
        pool = declare_model(
            sessions, admin, model_id=f"model-{number}", pool=name, context_window=5, kind="chat", now=NOW
        )
        adapters = [
            create_adapter(sessions, admin, name=name, variants={"race-base": "p"}, tenant_id=owner, now=NOW)
            for owner in (None, tenant.id)
        ]
        assert await statuses(model, *adapters, pool) == {200: 1, 409: 3}


async def test_a_model_is_not_deleted_under_an_adapter_or_a_tier(sessions: Sessions, admin: Principal) -> None:
    for number in range(ROUNDS):
        model_id, pool = f"base-{number}", f"base-pool-{number}"
        await declare_model(sessions, admin, model_id=model_id, pool=pool, context_window=5, kind="chat", now=NOW)
        outcome = await statuses(
            delete_model(sessions, admin, model_id, configured_models=(), served_pools=(), now=NOW),
            change_tier(sessions, admin, "pro", {"allowed_pools": [pool]}, now=NOW),
            create_adapter(sessions, admin, name=f"voice-{number}", variants={model_id: "v"}, tenant_id=None, now=NOW),
        )
        assert outcome in ({200: 1, 400: 2}, {200: 2, 409: 1})
        await change_tier(sessions, admin, "pro", {"allowed_pools": None}, now=NOW)


async def test_of_administrators_that_end_each_other_one_stays(sessions: Sessions, admin: Principal) -> None:
    """Each of two tenants has one admin key, and nobody else has any."""
    for number in range(ROUNDS):
        tenants, keys = [], []
        for which in ("a", "b"):
            tenant = await create_tenant(sessions, admin, name=f"ops-{number}-{which}", tier="pro", now=NOW)
            key, _ = await create_key(
                sessions, admin, tenant_id=tenant.id, name="k", scopes=["platform-admin"], pepper=PEPPER, now=NOW
            )
            tenants.append(tenant)
            keys.append(key)
        await end_admin_keys(sessions, but={key.id for key in keys})
        outcome = await statuses(
            revoke_key(sessions, admin, keys[0].id, now=NOW),
            change_tenant(sessions, admin, tenants[1].id, is_suspended=True, now=NOW),
        )
        assert outcome == {200: 1, 409: 1}


async def end_admin_keys(sessions: Sessions, *, but: set[UUID]) -> None:
    async with sessions.begin() as session:
        for key in await session.scalars(usable_admin_keys()):
            if key.id not in but:
                key.revoked_at = NOW


async def test_of_edits_of_one_state_one_passes(sessions: Sessions, admin: Principal) -> None:
    tenant = await create_tenant(sessions, admin, name="edited", tier="pro", now=NOW)
    for number in range(ROUNDS):
        names = [f"edited-{number}-{each}" for each in range(4)]
        changes = (change_tenant(sessions, admin, tenant.id, name=name, version=number + 1, now=NOW) for name in names)
        assert await statuses(*changes) == {200: 1, 409: 3}
