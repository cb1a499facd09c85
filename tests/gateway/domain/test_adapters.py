"""Publishing adapters and what follows by itself, on both databases and a real store in a folder."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from uuid import UUID

import pytest
from sqlalchemy import select

from gateway.artifacts.store import ArtifactStore
from gateway.database import Sessions
from gateway.domain.adapters.models import Adapter, Artifact
from gateway.domain.adapters.publishing import NewAdapter, NewVersion, publish
from gateway.domain.adapters.service import delete_adapter, read_adapter
from gateway.domain.adapters.upkeep import KEPT_UNUSED, remove_unused, settle_pending
from gateway.domain.models.service import declare_model
from gateway.domain.principal import Principal
from gateway.http.errors import Conflict, GatewayError, Unavailable
from protocol.load import AdapterBase
from tests.gateway.domain.conftest import NOW
from tests.support.adapter_files import config_bytes, in_chunks, objects_below, tensors, weights_bytes

WEIGHTS = weights_bytes(tensors())
LATER = NOW + KEPT_UNUSED + timedelta(seconds=1)


@dataclass
class Files:
    """An upload that has come. error: what its end raises, after `reached` is set."""

    alpha: int = 8
    error: Exception | None = None

    async def config(self) -> bytes:
        return config_bytes(lora_alpha=self.alpha)

    def weights(self) -> AsyncIterator[bytes]:
        return in_chunks(WEIGHTS)

    async def finish(self) -> None:
        if self.error is not None:
            raise self.error


@pytest.fixture
async def store(tmp_path: Path, sessions: Sessions, admin: Principal) -> ArtifactStore:
    await declare_model(sessions, admin, model_id="m", pool="small", context_window=512, kind="chat", now=NOW)
    return ArtifactStore(str(tmp_path / "store"))


@pytest.fixture(autouse=True)
async def leave_nothing(sessions: Sessions, store: ArtifactStore) -> AsyncIterator[None]:
    """PostgreSQL serves the next test, too."""
    yield
    async with sessions.begin() as session:
        for adapter in await session.scalars(select(Adapter)):
            await session.delete(adapter)
    await remove_unused(sessions, store, now=NOW + timedelta(days=2), kept_for=timedelta(0))
    await remove_unused(sessions, store, now=NOW + timedelta(days=3), kept_for=timedelta(0))
    async with sessions() as session:
        assert list(await session.scalars(select(Artifact))) == []


def place(name: str = "voice") -> NewAdapter:
    return NewAdapter(name, "m", None, ())


async def digest_of(sessions: Sessions, adapter_id: UUID) -> str:
    [variant] = (await read_adapter(sessions, adapter_id)).variants
    assert variant.digest is not None
    return variant.digest


async def test_one_name_that_many_upload_at_once_is_one_adapters(
    sessions: Sessions, admin: Principal, store: ArtifactStore, tmp_path: Path
) -> None:
    made = await asyncio.gather(
        *(publish(sessions, store, admin, place(), Files(alpha), base=None, now=NOW) for alpha in range(1, 6)),
        return_exceptions=True,
    )
    [winner] = [each for each in made if isinstance(each, Adapter)]
    assert all(isinstance(each, Conflict) for each in made if each is not winner)
    # What the others had stored already goes as what is unused does.
    await remove_unused(sessions, store, now=LATER)
    kept = {path.split("/")[2] for path in objects_below(tmp_path / "store")}
    assert kept == {await digest_of(sessions, winner.id)}


async def test_one_content_under_many_names_stays_until_the_last_is_gone(
    sessions: Sessions, admin: Principal, store: ArtifactStore, tmp_path: Path
) -> None:
    made = await asyncio.gather(
        *(publish(sessions, store, admin, place(f"voice-{i}"), Files(), base=None, now=NOW) for i in range(4)),
        return_exceptions=True,
    )
    adapters = [each for each in made if isinstance(each, Adapter)]
    assert len(adapters) == 4, made
    assert len(objects_below(tmp_path / "store")) == 3
    for adapter in adapters:
        assert await remove_unused(sessions, store, now=LATER) == 0
        await delete_adapter(sessions, admin, adapter.id, now=NOW)
    assert await remove_unused(sessions, store, now=LATER) == 0
    assert await remove_unused(sessions, store, now=LATER + KEPT_UNUSED) == 0
    assert await remove_unused(sessions, store, now=LATER + KEPT_UNUSED + timedelta(seconds=1)) == 1
    assert objects_below(tmp_path / "store") == []


async def test_a_content_that_comes_again_while_it_waits_to_go_stays(
    sessions: Sessions, admin: Principal, store: ArtifactStore, tmp_path: Path
) -> None:
    first = await publish(sessions, store, admin, place(), Files(), base=None, now=NOW)
    await delete_adapter(sessions, admin, first.id, now=NOW)
    assert await remove_unused(sessions, store, now=NOW) == 0
    await publish(sessions, store, admin, place(), Files(), base=None, now=LATER)
    assert await remove_unused(sessions, store, now=LATER + KEPT_UNUSED + timedelta(days=1)) == 0
    assert len(objects_below(tmp_path / "store")) == 3


async def test_a_content_that_is_just_being_removed_is_asked_for_again(
    sessions: Sessions, admin: Principal, store: ArtifactStore
) -> None:
    first = await publish(sessions, store, admin, place(), Files(), base=None, now=NOW)
    digest = await digest_of(sessions, first.id)
    await delete_adapter(sessions, admin, first.id, now=NOW)
    async with sessions.begin() as session:
        (await session.get_one(Artifact, digest)).is_leaving = True
    with pytest.raises(Unavailable):
        await publish(sessions, store, admin, place(), Files(), base=None, now=NOW)
    # Whoever was removing it died; the next round ends it.
    assert await remove_unused(sessions, store, now=NOW) == 1
    await publish(sessions, store, admin, place(), Files(), base=None, now=NOW)


async def test_an_upload_whose_end_fails_registers_nothing_and_leaves_nothing(
    sessions: Sessions, admin: Principal, store: ArtifactStore, tmp_path: Path
) -> None:
    with pytest.raises(GatewayError, match="cut"):
        await publish(sessions, store, admin, place(), Files(error=GatewayError("cut")), base=None, now=NOW)
    async with sessions() as session:
        assert list(await session.scalars(select(Artifact))) == []
    assert objects_below(tmp_path / "store") == []


async def test_what_was_stored_for_an_adapter_that_was_deleted_meanwhile_goes(
    sessions: Sessions, admin: Principal, store: ArtifactStore, tmp_path: Path
) -> None:
    adapter = await publish(sessions, store, admin, place(), Files(), base=None, now=NOW)

    class Deleting(Files):
        async def finish(self) -> None:
            await delete_adapter(sessions, admin, adapter.id, now=NOW)

    with pytest.raises(GatewayError, match="no such adapter"):
        await publish(sessions, store, admin, NewVersion(adapter.id, "m"), Deleting(9), base=None, now=NOW)
    await remove_unused(sessions, store, now=NOW)
    await remove_unused(sessions, store, now=LATER)
    assert objects_below(tmp_path / "store") == []


async def test_pending_variants_are_settled_by_what_workers_tell(
    sessions: Sessions, admin: Principal, store: ArtifactStore
) -> None:
    adapter = await publish(sessions, store, admin, place(), Files(), base=None, now=NOW)
    bases = {"m": AdapterBase(num_layers=2, shapes={"q_proj": (64, 64)}, max_rank=8)}
    assert await settle_pending(sessions, {"other": bases["m"]}, now=NOW) == 0
    assert await settle_pending(sessions, bases, now=NOW) == 1
    assert await settle_pending(sessions, bases, now=NOW) == 0
    [variant] = (await read_adapter(sessions, adapter.id)).variants
    assert (variant.status, variant.reason, variant.version) == ("ready", None, 1)
