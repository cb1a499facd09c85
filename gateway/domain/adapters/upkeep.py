"""Background upkeep: pending variants are settled once a worker has reported its shapes; unused files are removed."""

from collections.abc import Collection, Mapping
from datetime import datetime, timedelta

from sqlalchemy import select, update
from sqlalchemy.orm import selectinload

from gateway.artifacts.layout import Layout, misfit
from gateway.artifacts.store import ArtifactStore
from gateway.database import Sessions
from gateway.domain.adapters.models import AdapterVariant, Artifact
from gateway.domain.locks import take_lock
from protocol.load import AdapterBase

KEPT_UNUSED = timedelta(minutes=15)
"""Longer than a request may take: one that began with an adapter may still have to load it on another replica."""
_USED = select(AdapterVariant.digest).where(AdapterVariant.digest.is_not(None))


async def settle_pending(sessions: Sessions, bases: Mapping[str, AdapterBase], *, now: datetime) -> int:
    """Returns how many variants are no longer pending. `bases`: by model id."""
    pending = (
        select(AdapterVariant)
        .where(AdapterVariant.status == "pending", AdapterVariant.model_id.in_(bases))
        .options(selectinload(AdapterVariant.artifact))
    )
    async with sessions.begin() as session:
        await take_lock(session, "names")
        variants = list(await session.scalars(pending))
        for variant in variants:
            assert variant.artifact is not None
            artifact = variant.artifact
            layout = Layout(artifact.rank, artifact.num_layers, artifact.shapes)
            variant.reason = misfit(layout, bases[variant.model_id], model_id=variant.model_id)
            variant.status = "ready" if variant.reason is None else "refused"
            variant.changed_at = now
    return len(variants)


async def remove_unused(
    sessions: Sessions, store: ArtifactStore, *, now: datetime, kept_for: timedelta = KEPT_UNUSED
) -> int:
    """Returns how many artifacts were removed. Raises Unavailable while the store is away; the next call goes on."""
    async with sessions.begin() as session:
        # Uploads take the same lock before they use an existing artifact.
        await take_lock(session, "names")
        is_used = Artifact.digest.in_(_USED)
        await session.execute(update(Artifact).where(Artifact.unused_at.is_(None), ~is_used).values(unused_at=now))
        await session.execute(update(Artifact).where(Artifact.unused_at.is_not(None), is_used).values(unused_at=None))
        old = (Artifact.unused_at < now - kept_for) & ~is_used
        await session.execute(update(Artifact).where(old).values(is_leaving=True))
    return await _remove_leaving(sessions, store)


async def remove_now(sessions: Sessions, store: ArtifactStore, digests: Collection[str]) -> int:
    """As `remove_unused`, but at once, for those of `digests` that no variant uses, even if requests still do."""
    async with sessions.begin() as session:
        await take_lock(session, "names")
        is_free = Artifact.digest.in_(digests), Artifact.digest.not_in(_USED)
        await session.execute(update(Artifact).where(*is_free).values(is_leaving=True))
    return await _remove_leaving(sessions, store)


async def _remove_leaving(sessions: Sessions, store: ArtifactStore) -> int:
    async with sessions() as session:
        digests = list(await session.scalars(select(Artifact.digest).where(Artifact.is_leaving)))
    for digest in digests:
        await store.remove(digest)
        async with sessions.begin() as session:
            artifact = await session.get(Artifact, digest)
            if artifact is not None:
                await session.delete(artifact)
    return len(digests)
