"""Erasure in Redis: all keys with the tenant's id as hash tag; or an end user's counters, sessions and responses."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec
from redis.exceptions import ResponseError

from gateway.answer_cache.store import KINDS, prefix_of
from gateway.domain.sealing import CannotUnseal
from gateway.domain.sessions.models import SessionPolicy
from gateway.domain.sessions.service import terms_of
from gateway.erasure.subject import Counts, Stores, Subject, Waits
from gateway.erasure.usage import sessions_of_user
from gateway.http.errors import Conflict, GatewayError, NotFound
from gateway.limits.commands import key_part, scope_key
from gateway.limits.presence import tenants_key
from gateway.redis_client import AWAY
from gateway.sessions.store import Place, Store

_AT_ONCE = 500
_PAGE = 100


class _OfUser(msgspec.Struct):
    user: str | None = None


async def forget_sessions(stores: Stores, subject: Subject) -> Counts:
    """Delete an end user's sessions and responses, before the step `usage` erases which sessions those are."""
    if subject.user is None:
        return {}
    tenant = subject.tenant
    counts: Counter[str] = Counter()
    try:
        for session_id in await sessions_of_user(stores, subject):
            counts["sessions"] += await _delete(stores.session_store, Place(tenant, session_id))
        for response_id in await _responses_of_user(stores, subject):
            counts["responses"] += await _delete(stores.response_store, Place(tenant, response_id))
    except GatewayError as error:
        raise Waits("redis", error.message) from error
    return dict(counts)


async def forget_keys(stores: Stores, subject: Subject) -> Counts:
    try:
        if subject.user is not None:
            name = scope_key(subject.tenant, key_part(f"user:{subject.user}"))
            return {"limits": int(await stores.redis.unlink(name)), "answers": await _forget_answers(stores, subject)}
        counts: Counter[str] = Counter()
        keys = await keys_of(stores, subject)
        for start in range(0, len(keys), _AT_ONCE):
            part = keys[start : start + _AT_ONCE]
            await stores.redis.unlink(*part)
            counts.update(_kind(key) for key in part)
        async for key in stores.redis.scan_iter(match=tenants_key("*"), count=1000):
            await stores.redis.srem(key, subject.tenant)
        return dict(counts)
    except AWAY as error:
        raise Waits("redis", str(error) or type(error).__name__) from error


async def _forget_answers(stores: Stores, subject: Subject) -> int:
    """Delete all cached answers of the tenant, because they do not record who asked."""
    num_keys = 0
    for kind in KINDS:
        keys = [key async for key in stores.redis.scan_iter(match=f"{prefix_of(subject.tenant)}{kind}:*", count=1000)]
        for start in range(0, len(keys), _AT_ONCE):
            num_keys += int(await stores.redis.unlink(*keys[start : start + _AT_ONCE]))
    return num_keys


async def keys_of(stores: Stores, subject: Subject) -> list[bytes]:
    """The subject's keys; for an end user, only its counters. Raises the exceptions in AWAY."""
    if subject.user is not None:
        name = scope_key(subject.tenant, key_part(f"user:{subject.user}"))
        return [name.encode()] if await stores.redis.exists(name) else []
    pattern = f"*{{{subject.tenant}}}*"
    return [key async for key in stores.redis.scan_iter(match=pattern, count=1000)]


async def rewrite_log(stores: Stores) -> bool:
    """Have Redis rewrite its append-only file, so that deleted data leaves it soon. False: it has none, or refuses."""
    try:
        if not (await stores.redis.info("persistence")).get("aof_enabled"):
            return False
        await stores.redis.bgrewriteaof()
    except ResponseError as error:
        # A rewrite is under way or scheduled already, or the operator forbids it.
        return "progress" in str(error) or "scheduled" in str(error)
    except AWAY as error:
        raise Waits("redis", str(error) or type(error).__name__) from error
    return True


async def _responses_of_user(stores: Stores, subject: Subject) -> Sequence[str]:
    found, after = [], None
    key = await _key_of(stores, subject)
    while True:
        page, after = await stores.response_store.page(subject.tenant, limit=_PAGE, after=after)
        for meta in page:
            try:
                kept = await stores.response_store.get(Place(subject.tenant, meta.id, key))
            except (NotFound, Conflict):
                continue
            if msgspec.json.decode(kept.value.response, type=_OfUser).user == subject.user:
                found.append(meta.id)
        if after is None:
            return found


async def _key_of(stores: Stores, subject: Subject) -> bytes | None:
    """The key that the tenant's sessions are sealed under. Raises Waits if the key was sealed under another pepper."""
    async with stores.sessions() as session:
        policy = await session.get(SessionPolicy, subject.tenant_id)
    try:
        return None if policy is None else terms_of(policy).key(subject.tenant_id, peppers=stores.peppers)
    except CannotUnseal:
        raise Waits("TIERGATE_KEY_PEPPER", "the key of the tenant's sessions was sealed under another one") from None


async def _delete(store: Store[Any, Any], place: Place) -> int:
    """Returns how many were deleted. Raises Conflict while a request holds the value."""
    try:
        await store.delete(place)
    except NotFound:
        return 0
    return 1


def _kind(key: bytes) -> str:
    """The kind of a key: `ctx`, `resp-index`, `limits`, ..."""
    parts = key.decode(errors="replace").split(":")
    return parts[2] if parts[0] == "tiergate" and len(parts) > 2 else parts[0]
