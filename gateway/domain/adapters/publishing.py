"""Publishes an uploaded adapter: its files are checked, stored and registered, in this order, or not at all."""

from collections.abc import AsyncIterator, Collection
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol
from uuid import UUID

from sqlalchemy.ext.asyncio import AsyncSession

from gateway.artifacts.layout import Layout, misfit
from gateway.artifacts.refusal import BadAdapter
from gateway.artifacts.store import ArtifactStore, Staged
from gateway.database import Sessions
from gateway.domain.adapters.models import Adapter, AdapterVariant, Artifact, VariantStatus
from gateway.domain.adapters.service import (
    adapter_shown,
    check_free,
    check_model,
    owner_of,
    read_adapter,
    require_adapter,
)
from gateway.domain.audit.service import record
from gateway.domain.locks import take_lock
from gateway.domain.principal import Principal
from gateway.domain.versions import Stale
from gateway.http.errors import Unavailable
from protocol.artifacts import artifact_name
from protocol.ids import new_id
from protocol.load import AdapterBase

PENDING = "no worker of its base model has registered yet, so that nobody knows what an adapter has to fit"


class Upload(Protocol):
    """Files being uploaded, in the order of these methods."""

    async def config(self) -> bytes: ...
    def weights(self) -> AsyncIterator[bytes]: ...
    async def finish(self) -> None:
        """Check that nothing is missing. Raises InvalidRequest."""


@dataclass(frozen=True, slots=True)
class NewAdapter:
    """`tenant_id` None: for everybody. `served_names`: models and pools that workers serve without a declaration."""

    name: str
    model_id: str
    tenant_id: UUID | None
    served_names: Collection[str]

    async def check(self, session: AsyncSession, principal: Principal) -> None:
        owner = owner_of(principal, self.tenant_id)
        await check_free(session, self.name, tenant_id=owner, served_names=self.served_names)
        await check_model(session, self.model_id, param="model")

    async def register(self, session: AsyncSession, principal: Principal, found: "_Found", now: datetime) -> UUID:
        adapter_id, tenant_id = new_id(now), owner_of(principal, self.tenant_id)
        variant = AdapterVariant(adapter_id=adapter_id, model_id=self.model_id, version=1, **found.columns(now))
        adapter = Adapter(id=adapter_id, tenant_id=tenant_id, name=self.name, created_at=now, variants=[variant])
        session.add(adapter)
        detail = {"name": self.name, "model": self.model_id, **found.detail}
        await record(
            session,
            principal,
            "adapter.create",
            object_id=adapter_id,
            tenant_id=tenant_id,
            now=now,
            detail=detail,
            after=adapter_shown(adapter),
        )
        return adapter_id


@dataclass(frozen=True, slots=True)
class NewVersion:
    """A version of an existing adapter: its first for this base model, or a replacement of the current one.

    seen_version: the version that the caller decided to replace, 0 for none; None: whichever is current.
    """

    adapter_id: UUID
    model_id: str
    seen_version: int | None = None

    async def check(self, session: AsyncSession, principal: Principal) -> None:
        adapter = await require_adapter(session, principal, self.adapter_id)
        await check_model(session, self.model_id, param="model")
        version = next((each.version for each in adapter.variants if each.model_id == self.model_id), 0)
        if self.seen_version is not None and version != self.seen_version:
            raise Stale(
                f"version {version} of {adapter.name!r} for {self.model_id!r} stands there by now, not version "
                f"{self.seen_version}: somebody else was quicker; look at it, and replace it if you still want to"
            )

    async def register(self, session: AsyncSession, principal: Principal, found: "_Found", now: datetime) -> UUID:
        adapter = await require_adapter(session, principal, self.adapter_id)
        before = adapter_shown(adapter)
        variant = next((each for each in adapter.variants if each.model_id == self.model_id), None)
        if variant is None:
            variant = AdapterVariant(adapter_id=adapter.id, model_id=self.model_id, version=0)
            adapter.variants.append(variant)
        for name, value in found.columns(now).items():
            setattr(variant, name, value)
        variant.version += 1
        detail = {"name": adapter.name, "model": self.model_id, "version": variant.version, **found.detail}
        await record(
            session,
            principal,
            "adapter.replace",
            object_id=adapter.id,
            tenant_id=adapter.tenant_id,
            now=now,
            detail=detail,
            before=before,
            after=adapter_shown(adapter),
        )
        return adapter.id


@dataclass(frozen=True, slots=True)
class _Found:
    digest: str
    size_bytes: int
    status: VariantStatus

    @property
    def detail(self) -> dict[str, object]:
        return {"digest": self.digest, "size_bytes": self.size_bytes}

    def columns(self, now: datetime) -> dict[str, object]:
        return {
            "worker_name": artifact_name(self.digest),
            "digest": self.digest,
            "status": self.status,
            "reason": PENDING if self.status == "pending" else None,
            "changed_at": now,
        }


async def publish(
    sessions: Sessions,
    store: ArtifactStore,
    principal: Principal,
    place: NewAdapter | NewVersion,
    upload: Upload,
    *,
    base: AdapterBase | None,
    now: datetime,
) -> Adapter:
    """`base`: what the model's workers reported. A wrong name or owner is refused before the upload is read."""
    async with sessions() as session:
        await place.check(session, principal)
    async with store.staging(await upload.config(), upload.weights()) as staged:
        await upload.finish()
        found = _Found(staged.digest, staged.size_bytes, _status(staged.layout, base, place.model_id))
        await _claim(sessions, staged, now)
        await store.publish(staged)
        async with sessions.begin() as session:
            await take_lock(session, "names")
            await place.check(session, principal)
            artifact = await session.get(Artifact, staged.digest)
            if artifact is None or artifact.is_leaving:
                raise _is_leaving()
            artifact.unused_at = None
            adapter_id = await place.register(session, principal, found, now)
    return await read_adapter(sessions, adapter_id)


def _status(layout: Layout, base: AdapterBase | None, model_id: str) -> VariantStatus:
    if base is None:
        return "pending"
    reason = misfit(layout, base, model_id=model_id)
    if reason is not None:
        raise BadAdapter(reason, param="weights")
    return "ready"


async def _claim(sessions: Sessions, staged: Staged, now: datetime) -> None:
    """Record the artifact before its files are stored, so that upkeep finds them, whatever happens before the end."""
    async with sessions.begin() as session:
        await take_lock(session, "names")
        artifact = await session.get(Artifact, staged.digest)
        if artifact is not None and artifact.is_leaving:
            raise _is_leaving()
        if artifact is not None:
            artifact.unused_at = artifact.unused_at and now
            return
        layout = staged.layout
        session.add(
            Artifact(
                digest=staged.digest,
                size_bytes=staged.size_bytes,
                rank=layout.rank,
                num_layers=layout.num_layers,
                shapes=layout.shapes,
                created_at=now,
                unused_at=now,
            )
        )


def _is_leaving() -> Unavailable:
    return Unavailable("the same content is just being removed from the store; send it again", retry_after_s=5)
