"""The proof of an erasure: every store is searched again for what names the subject."""

import asyncio
from collections.abc import Awaitable, Callable
from uuid import UUID

from gateway.erasure.audit_rows import count_audit_rows
from gateway.erasure.objects import free_digests
from gateway.erasure.outboxes import count_events
from gateway.erasure.redis_keys import keys_of
from gateway.erasure.rows import count_rows
from gateway.erasure.subject import Counts, Stores, Subject, Waits
from gateway.erasure.usage import count_usage
from gateway.http.errors import GatewayError
from gateway.redis_client import AWAY

Look = Callable[[Stores, Subject], Awaitable[int]]


async def look_everywhere(stores: Stores, subject: Subject) -> Counts:
    """What is left, by store; 0 in each after an erasure. Raises Waits if a store is away."""
    return {store: await look(stores, subject) for store, look in LOOKS.items()}


async def _in_outboxes(stores: Stores, subject: Subject) -> int:
    return await asyncio.to_thread(count_events, stores.data_dir, subject.tenant, subject.user)


async def _in_redis(stores: Stores, subject: Subject) -> int:
    try:
        return len(await keys_of(stores, subject))
    except AWAY as error:
        raise Waits("redis", str(error) or type(error).__name__) from error


async def _in_object_store(stores: Stores, subject: Subject) -> int:
    files = subject.progress.get("files", [])
    digests = await free_digests(stores, subject.progress.get("digests", []))
    try:
        num_files = sum([await stores.files.has(digest, UUID(file_id)) for digest, file_id in files])
        return num_files + sum([await stores.artifacts.has(digest) for digest in digests])
    except GatewayError as error:
        raise Waits("object store", error.message) from error


LOOKS: dict[str, Look] = {
    "database": count_rows,
    "audit_log": count_audit_rows,
    "redis": _in_redis,
    "outboxes": _in_outboxes,
    "clickhouse": count_usage,
    "object_store": _in_object_store,
}
