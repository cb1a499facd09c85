"""Counts what depends on which pepper, to tell whether an old one may be removed, or was removed too early."""

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Literal, get_args

from sqlalchemy import Select, func, select
from sqlalchemy.ext.asyncio import AsyncSession

from gateway.database import Sessions
from gateway.domain.audit.chain import sealed_with
from gateway.domain.audit.models import AuditHead
from gateway.domain.keys.models import ApiKey
from gateway.domain.peppers.reports import pepper_of, sealed_reports
from gateway.domain.peppers.sealed import SEALED, sealed_rows
from gateway.domain.tenants.models import Tenant
from gateway.peppers import Peppers, id_of

Kind = Literal["current", "old", "upcoming", "unknown"]
KINDS: tuple[Kind, ...] = get_args(Kind)
Standing = Mapping[str, Counter[Kind]]
"""Counts by KEYS, the names in SEALED, REPORTS and AUDIT."""
KEYS, REPORTS, AUDIT = "API keys", "erasure reports", "audit log"
_MAX_AT_START = 200
_log = logging.getLogger(__name__)


async def standing_of(
    session: AsyncSession, peppers: Peppers, *, max_sealed: int | None = None, now: datetime
) -> Standing:
    """Keys that are no longer accepted are not counted. max_sealed: how many rows of each sealed column to look at."""
    found: dict[str, Counter[Kind]] = {KEYS: Counter()}
    for is_current in (True, False):
        for pepper_id, num_keys in await session.execute(_keys_by_pepper(is_current=is_current, now=now)):
            found[KEYS][_kind_of_id(pepper_id, peppers)] += num_keys
    for each in SEALED:
        counts = found[each.name] = Counter()
        async for row in sealed_rows(session, each, peppers):
            counts[_kind(None if row.opened is None else row.opened[1], peppers)] += 1
            if max_sealed is not None and counts.total() >= max_sealed:
                break
    found[REPORTS] = Counter()
    for erasure in await session.scalars(sealed_reports()):
        found[REPORTS][_kind(pepper_of(erasure, peppers), peppers)] += 1
    found[AUDIT] = Counter()
    head = await session.scalar(select(AuditHead))
    if head is not None and head.seal is not None:
        found[AUDIT][_kind(sealed_with(head.seal, head.num_rows, head.hash, peppers=peppers), peppers)] += 1
    return found


async def warn_of_missing(sessions: Sessions, peppers: Peppers, *, now: datetime) -> None:
    """Log what depends on a pepper that was removed too early. Looks at up to _MAX_AT_START rows per sealed column."""
    async with sessions() as session:
        standing = await standing_of(session, peppers, max_sealed=_MAX_AT_START, now=now)
    if num_under(standing, "unknown"):
        _log.error("%s", missing_told(standing))


def missing_told(standing: Standing) -> str:
    left = ", ".join(f"{counts['unknown']:,} {name}" for name, counts in standing.items() if counts["unknown"])
    return (
        f"on a pepper that is neither TIERGATE_KEY_PEPPER nor among TIERGATE_OLD_KEY_PEPPERS hang: {left}; "
        "such keys get 401, and such secrets cannot be read"
    )


def num_under(standing: Standing, kind: Kind) -> int:
    return sum(counts[kind] for counts in standing.values())


async def keys_to_move(session: AsyncSession, peppers: Peppers, *, now: datetime) -> list[ApiKey]:
    """Keys that move at their next use, or cannot move because their pepper is missing."""
    query = _live(select(ApiKey), now=now).where(ApiKey.pepper_id != id_of(peppers.current))
    return list(await session.scalars(query.order_by(ApiKey.id)))


def _live(query: Select[Any], *, now: datetime) -> Select[Any]:
    return query.join(Tenant, Tenant.id == ApiKey.tenant_id).where(
        ApiKey.revoked_at.is_(None),
        ApiKey.expires_at.is_(None) | (ApiKey.expires_at > now),
        Tenant.deleted_at.is_(None),
    )


def _keys_by_pepper(*, is_current: bool, now: datetime) -> Select[Any]:
    """is_current: count the current secrets of keys; else those from before a rotation that still work."""
    column = ApiKey.pepper_id if is_current else ApiKey.previous_pepper_id
    columns: Sequence[Any] = (column, func.count())
    query = _live(select(*columns).select_from(ApiKey), now=now).group_by(column)
    return query if is_current else query.where(ApiKey.previous_until > now)


def _kind_of_id(pepper_id: bytes | None, peppers: Peppers) -> Kind:
    """Hashes without an id, from a version that recorded none, were made with an old pepper if there is one."""
    if pepper_id is None:
        return "old" if peppers.old else "current"
    return _kind(next((each for each in peppers.all if id_of(each) == pepper_id), None), peppers)


def _kind(pepper: str | None, peppers: Peppers) -> Kind:
    if pepper is None:
        return "unknown"
    if pepper == peppers.current:
        return "current"
    return "upcoming" if pepper == peppers.upcoming else "old"
