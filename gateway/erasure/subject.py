"""The subject of an erasure, and the stores that it is erased from."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

from redis.asyncio import Redis

from gateway.artifacts.files import FileStore
from gateway.artifacts.store import ArtifactStore
from gateway.database import Sessions
from gateway.domain.erasures.models import Erasure
from gateway.domain.erasures.names import unseal_name
from gateway.peppers import Peppers
from gateway.sessions.conversation import Conversation, Meta
from gateway.sessions.responses import ResponseMeta, StoredResponse
from gateway.sessions.store import Store
from gateway.upstream.client import WorkerClient
from gateway.upstream.registry import Registry

Counts = dict[str, int]
"""How many of each kind were removed. Goes into the report, so it holds nothing personal."""


class Waits(Exception):
    """A store is away, or work is under way: the step is tried again later."""

    def __init__(self, store: str, reason: str) -> None:
        super().__init__(f"{store}: {reason}"[:400])


@dataclass(frozen=True, slots=True)
class Stores:
    sessions: Sessions
    redis: "Redis"
    files: FileStore
    artifacts: ArtifactStore
    session_store: Store[Meta, Conversation]
    response_store: Store[ResponseMeta, StoredResponse]
    registry: Registry
    workers: WorkerClient
    clickhouse_url: str | None
    sql_url: str
    data_dir: Path
    peppers: Peppers


@dataclass(frozen=True, slots=True)
class Subject:
    """user: None for a whole tenant. progress: what an earlier run of the step recorded."""

    erasure_id: UUID
    tenant_id: UUID
    user: str | None
    pseudonym: UUID
    salt: bytes
    created_at: datetime
    progress: Mapping[str, Any]

    @property
    def tenant(self) -> str:
        return str(self.tenant_id)


def subject_of(erasure: Erasure, *, peppers: Peppers) -> Subject:
    """The subject of a running erasure. Raises Waits if the end user's name was sealed under another pepper."""
    assert erasure.pseudonym is not None and erasure.salt is not None
    user = None
    if erasure.sealed_user is not None:
        user = unseal_name(erasure.sealed_user, erasure_id=erasure.id, peppers=peppers)
        if user is None:
            raise Waits("TIERGATE_KEY_PEPPER", "the end user's name was sealed under another one")
    return Subject(
        erasure.id, erasure.tenant_id, user, erasure.pseudonym, erasure.salt, erasure.created_at, erasure.progress
    )


def late_subject(erasure: Erasure, *, user: str | None = None) -> Subject:
    """The subject of a finished erasure. Its pseudonym is gone, so late usage gets another."""
    pseudonym = uuid4()
    salt = pseudonym.bytes + uuid4().bytes
    return Subject(erasure.id, erasure.tenant_id, user, pseudonym, salt, erasure.created_at, erasure.progress)


async def note_progress(stores: Stores, subject: Subject, **values: Any) -> None:
    """Record what the step has to know after a crash."""
    async with stores.sessions.begin() as session:
        erasure = await session.get(Erasure, subject.erasure_id)
        assert erasure is not None
        erasure.progress = {**erasure.progress, **values}
