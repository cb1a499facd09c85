"""Checks Redis or Valkey: reachable, evicting nothing, persistent across a restart, and its clock in step."""

from datetime import datetime
from typing import Any

from redis.exceptions import AuthenticationError, RedisError, ResponseError

from gateway.redis_client import connect_redis
from gateway.settings import GatewaySettings
from tiergate.doctor.findings import Finding, error, one_line, warning

DEADLINE_S = 5.0
MIN_MAJOR = 7
MAX_SKEW_S = 5.0
FULL_SHARE = 0.9


async def look_at_redis(settings: GatewaySettings, now: datetime) -> list[Finding]:
    redis = connect_redis(settings.redis_url, deadline_s=DEADLINE_S)
    try:
        seconds, micros = await redis.time()
        told: dict[str, Any] = await redis.info()
        return [*_judged(told, await _options(redis)), *_skew(now.timestamp() - seconds - micros / 1e6)]
    except AuthenticationError as problem:
        todo = "correct the user and the password in TIERGATE_REDIS_URL"
        return [error("redis-password", f"Redis refuses us: {one_line(problem)}", todo)]
    except (RedisError, OSError, TimeoutError) as problem:
        todo = "start it, or correct TIERGATE_REDIS_URL; until then limits are local and sessions refused"
        return [error("redis-away", f"Redis cannot be used: {one_line(problem)}", todo)]
    finally:
        await redis.aclose()


async def _options(redis: Any) -> dict[str, str]:
    """The persistence options; empty if the provider does not allow CONFIG GET."""
    try:
        found: dict[str, str] = await redis.config_get("appendonly", "save")
        return found
    except ResponseError:
        return {}


def _judged(told: dict[str, Any], options: dict[str, str]) -> list[Finding]:
    found = []
    version = str(told.get("valkey_version") or told.get("redis_version") or "")
    if int(version.partition(".")[0] or 0) < MIN_MAJOR:
        found.append(error("redis-version", f"Redis is {version}", f"use Redis or Valkey {MIN_MAJOR} or newer"))
    policy = told.get("maxmemory_policy")
    if policy != "noeviction":
        what = f"Redis's maxmemory-policy is {policy}: it forgets limits, sessions and workers when it is full"
        found.append(error("redis-eviction", what, "CONFIG SET maxmemory-policy noeviction, and in its configuration"))
    limit, used = int(told.get("maxmemory", 0)), int(told.get("used_memory", 0))
    if limit and used > limit * FULL_SHARE:
        found.append(error("redis-full", f"Redis uses {used:,} of {limit:,} bytes", "raise its maxmemory"))
    if options and options.get("appendonly") == "no":
        nothing = "Redis keeps nothing over a restart: sessions are lost"
        older = "after a crash Redis comes back with an older state, which has forgotten some of what was spent"
        found.append(warning("redis-persistence", older if options.get("save") else nothing, "appendonly yes"))
    if told.get("role") in ("slave", "replica"):
        found.append(error("redis-replica", "Redis is a replica, which takes no writes", "name the primary"))
    return found


def _skew(skew_s: float) -> list[Finding]:
    if abs(skew_s) <= MAX_SKEW_S:
        return []
    return [error("clock", f"Redis's clock and ours differ by {abs(skew_s):.0f} s", "run NTP on both machines")]
