"""Erasure in the object store and at workers that fetched from it: files, and adapters that no other tenant has."""

import asyncio

import msgspec
from sqlalchemy import select

from gateway.domain.adapters.models import AdapterVariant
from gateway.domain.adapters.upkeep import remove_now
from gateway.domain.files.models import StoredFile
from gateway.domain.files.service import forget_file
from gateway.erasure.subject import Counts, Stores, Subject, Waits, note_progress
from gateway.http.errors import GatewayError
from gateway.upstream.client import MemberFailed, MemberRefused
from protocol.artifacts import artifact_name
from router.fleet import Member

_DEADLINE_S = 10.0


async def remove_files(stores: Stores, subject: Subject) -> Counts:
    """Remove a tenant's files; for an end user none, because only the tenant can tell whom a file is about."""
    if subject.user is not None:
        return {}
    async with stores.sessions() as session:
        query = select(StoredFile).where(StoredFile.tenant_id == subject.tenant_id)
        files = list(await session.scalars(query))
    noted = {tuple(each) for each in subject.progress.get("files", ())}
    names = noted | {(file.digest, str(file.id)) for file in files}
    await note_progress(stores, subject, files=sorted(names))
    try:
        for file in files:
            await stores.files.remove(file.digest, file.id)
            await forget_file(stores.sessions, file.id)
    except GatewayError as error:
        raise Waits("object store", error.message) from error
    return {"files": len(names)}


async def remove_adapters(stores: Stores, subject: Subject) -> Counts:
    """Remove adapters from the store and from every worker of our own engine in the fleet."""
    digests: list[str] = subject.progress.get("digests", [])
    if not digests:
        return {}
    try:
        await remove_now(stores.sessions, stores.artifacts, digests)
    except GatewayError as error:
        raise Waits("object store", error.message) from error
    free = await free_digests(stores, digests)
    members = [
        member
        for pool in stores.registry.fleet.pools.values()
        for member in pool.members
        if member.engine == "tiergate"
    ]
    for member in members:
        for digest in free:
            await _have_forgotten(stores, member, digest)
    return {"artifacts": len(free), "workers_told": len(members)}


async def free_digests(stores: Stores, digests: list[str]) -> list[str]:
    """Those of `digests` that no adapter uses any more, and that are to be removed."""
    async with stores.sessions() as session:
        used = set(await session.scalars(select(AdapterVariant.digest).where(AdapterVariant.digest.in_(digests))))
    return [digest for digest in digests if digest not in used]


async def _have_forgotten(stores: Stores, member: Member, digest: str) -> None:
    """Have a worker unload the adapter: requests under way finish with it, then its folder is removed. Raises Waits."""
    body = msgspec.json.encode({"lora_name": artifact_name(digest)})
    try:
        async with asyncio.timeout(_DEADLINE_S):
            answer = await stores.workers.post(member, "/v1/unload_lora_adapter", body, {})
            try:
                await answer.read()
            finally:
                answer.close()
    except (MemberFailed, MemberRefused, TimeoutError) as error:
        if isinstance(error, MemberFailed) and error.is_missing:
            # The worker has not loaded the adapter; its folder is removed all the same.
            return
        raise Waits(f"worker {member.worker_id}", str(error) or "no answer") from error
