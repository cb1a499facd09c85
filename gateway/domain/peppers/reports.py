"""Seals over the reports of erasures: few and small, so all of them are replaced at once."""

from sqlalchemy import Select, select
from sqlalchemy.ext.asyncio import AsyncSession

from gateway.domain.erasures.models import Erasure
from gateway.domain.erasures.seals import seal_of, sealed_with
from gateway.peppers import Peppers


def sealed_reports() -> Select[Erasure]:
    return select(Erasure).where(Erasure.seal.is_not(None), Erasure.sha256.is_not(None))


def pepper_of(erasure: Erasure, peppers: Peppers) -> str | None:
    """The pepper that made the seal; None: none of `peppers` did, or the digest was altered."""
    return sealed_with(erasure.seal, bytes.fromhex(erasure.sha256 or ""), peppers=peppers)


async def move_reports(session: AsyncSession, peppers: Peppers) -> int:
    """Returns how many reports were sealed again; those that no pepper vouches for stay as they are."""
    num_moved = 0
    for erasure in await session.scalars(sealed_reports()):
        if pepper_of(erasure, peppers) not in (None, peppers.current):
            erasure.seal = seal_of(bytes.fromhex(erasure.sha256 or ""), pepper=peppers.current)
            num_moved += 1
    return num_moved
