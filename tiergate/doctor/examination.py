"""Runs all checks. A check that hangs is reported like one that fails."""

import asyncio
from collections.abc import Awaitable
from datetime import datetime
from pathlib import Path

from gateway.settings import GatewaySettings
from tiergate.doctor.database import look_at_database
from tiergate.doctor.findings import Finding, error
from tiergate.doctor.identity_provider import look_at_provider
from tiergate.doctor.machine import look_at_disk, look_at_files, look_at_limits, look_at_port, look_at_secrets
from tiergate.doctor.members import look_at_members
from tiergate.doctor.redis_server import look_at_redis
from tiergate.doctor.usage_stores import look_at_clickhouse, look_at_kafka

DEADLINE_S = 60.0


async def examine(settings: GatewaySettings, config: Path | None, *, now: datetime) -> list[Finding]:
    """All findings, errors first."""
    found = [
        *look_at_files(settings, config),
        *look_at_disk(settings),
        *look_at_limits(),
        *look_at_secrets(settings),
        *look_at_port(settings),
    ]
    remote: dict[str, Awaitable[list[Finding]]] = {
        "database": look_at_database(settings, now),
        "redis": look_at_redis(settings, now),
        "clickhouse": look_at_clickhouse(settings),
        "kafka": look_at_kafka(settings),
        "members": look_at_members(settings),
        "oidc-provider": look_at_provider(settings, now),
    }
    answers = await asyncio.gather(*(_in_time(name, look) for name, look in remote.items()))
    return sorted((*found, *(each for found in answers for each in found)), key=lambda each: each.severity)


async def _in_time(name: str, look: Awaitable[list[Finding]]) -> list[Finding]:
    try:
        async with asyncio.timeout(DEADLINE_S):
            return await look
    except TimeoutError:
        return [error(f"{name}-hangs", f"{name} did not answer within {DEADLINE_S:.0f} s", "look into its log")]
