"""Seals over the reports of erasures: few, small, and made anew as they stand."""

from sqlalchemy import Select, select
from sqlalchemy.ext.asyncio import AsyncSession

from gateway.domain.erasures.models import Erasure
from gateway.domain.erasures.seals import seal_of, sealed_with
from gateway.peppers import Peppers


def sealed_reports() -> Select[Erasure]:
    return select(Erasure).where(Erasure.seal.is_not(None), Erasure.sha256.is_not(None))


def pepper_of(erasure: Erasure, peppers: Peppers) -> str | None:
    """None: none of these, or the digest was altered."""
    return sealed_with(erasure.seal, bytes.fromhex(erasure.sha256 or ""), peppers=peppers)


async def move_reports(session: AsyncSession, peppers: Peppers) -> int:
    """How many; those that no pepper vouches for stay as they are."""
    num_moved = 0
    for erasure in await session.scalars(sealed_reports()):
        if pepper_of(erasure, peppers) not in (None, peppers.current):
            erasure.seal = seal_of(bytes.fromhex(erasure.sha256 or ""), pepper=peppers.current)
            num_moved += 1
    return num_moved
