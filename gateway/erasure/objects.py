"""The object store and what workers fetched from it: files, and adapters that no other tenant has."""

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
    """A tenant's; whose end user a file is about, only the tenant can tell."""
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
    """From the store, and from every worker that is there."""
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
    """Those that no other tenant's adapter has, and that are to go."""
    async with stores.sessions() as session:
        used = set(await session.scalars(select(AdapterVariant.digest).where(AdapterVariant.digest.in_(digests))))
    return [digest for digest in digests if digest not in used]


async def _have_forgotten(stores: Stores, member: Member, digest: str) -> None:
    """Requests under way end with it, and then its folder goes. Raises Waits."""
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
            # It does not have it loaded; its folder goes all the same.
            return
        raise Waits(f"worker {member.worker_id}", str(error) or "no answer") from error
