"""Work under way ends before anything is removed: requests, and a tenant's batches."""

from datetime import timedelta

from sqlalchemy import func, select, update

from gateway.clock import utc_now
from gateway.domain.batches.models import LIVE, Batch
from gateway.erasure.subject import Counts, Stores, Subject, Waits, note_progress
from gateway.limits.commands import held_key
from gateway.redis_client import AWAY

LEARNED_WITHIN = timedelta(seconds=4)
"""By then every gateway has read its keys and its catalog again, whether or not a notice reached it."""


async def let_requests_end(stores: Stores, subject: Subject) -> Counts:
    """Raises Waits until requests under way have ended. New requests are refused meanwhile."""
    if utc_now() - subject.created_at < LEARNED_WITHIN:
        raise Waits("requests", "gateways learn that there may be no more")
    try:
        live = await _live_requests(stores, subject.tenant)
    except AWAY as error:
        raise Waits("redis", str(error) or type(error).__name__) from error
    if "requests" not in subject.progress:
        # An end user's requests cannot be told apart from others, so all that are under way now have to end.
        await note_progress(stores, subject, requests=sorted(live))
    left = live & set(subject.progress.get("requests", live))
    if left:
        raise Waits("requests", f"{len(left)} are under way")
    return {}


async def end_batches(stores: Stores, subject: Subject) -> Counts:
    """Cancel a tenant's batches. Raises Waits until they have ended."""
    if subject.user is not None:
        return {}
    runs = Batch.tenant_id == subject.tenant_id, Batch.status.in_(("validating", "in_progress"))
    async with stores.sessions.begin() as session:
        await session.execute(update(Batch).where(*runs).values(status="cancelling", cancelling_at=utc_now()))
        is_live = Batch.tenant_id == subject.tenant_id, Batch.status.in_(LIVE)
        num_live = await session.scalar(select(func.count()).select_from(Batch).where(*is_live)) or 0
    if num_live:
        raise Waits("batches", f"{num_live} are being cancelled")
    return {}


async def _live_requests(stores: Stores, tenant: str) -> set[str]:
    found: set[str] = set()
    async for key in stores.redis.scan_iter(match=held_key(tenant, "*"), count=1000):
        records: dict[bytes, bytes] = await stores.redis.hgetall(key)  # type: ignore[assignment]
        found |= {name.decode() for name, record in records.items() if record.startswith(b"live")}
    return found
