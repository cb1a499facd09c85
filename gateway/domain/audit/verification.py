"""Checks that the audit log is as it was written: every row, in order, none missing, and nothing after the last."""

import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import Row, Text, cast, func, select
from sqlalchemy.ext.asyncio import AsyncSession

from gateway.database import Sessions
from gateway.domain.audit.chain import BLANK, GENESIS, Contents, Frame, hash_contents, is_sealed, link, link_old, trace
from gateway.domain.audit.models import AuditEntry, AuditHead
from gateway.domain.audit.writing import ERASE_ACTION, SEAL_ACTION
from gateway.domain.keys.models import ApiKey
from gateway.peppers import Peppers

_CHUNK = 10_000
_FRAME = (
    AuditEntry.position,
    AuditEntry.id,
    AuditEntry.at,
    AuditEntry.actor_key_id,
    AuditEntry.tenant_id,
    AuditEntry.action,
)
_CONTENTS = (
    AuditEntry.object_id,
    AuditEntry.request_id,
    AuditEntry.address,
    cast(AuditEntry.detail, Text).label("detail"),
    cast(AuditEntry.before, Text).label("before"),
    cast(AuditEntry.after, Text).label("after"),
    AuditEntry.actor_subject,
    AuditEntry.actor_email,
)
_HASHES = AuditEntry.salt, AuditEntry.contents_hash, AuditEntry.is_erased, AuditEntry.hash
_FRAME_END = len(_FRAME)
_CONTENTS_END = _FRAME_END + len(_CONTENTS)
_LOWEST = -(2**63)
_END = select(
    func.count(AuditEntry.id).label("count"),
    func.max(AuditEntry.position).label("max_position"),
    *(
        select(column).scalar_subquery().label(column.key)
        for column in (AuditHead.num_rows, AuditHead.hash, AuditHead.seal)
    ),
)


class BrokenChain(Exception):
    """`position` and `entry_id` name the first row that is not as it was written, if such a row exists."""

    def __init__(self, reason: str, *, position: int | None = None, entry_id: UUID | None = None) -> None:
        super().__init__(reason)
        self.position = position
        self.entry_id = entry_id


@dataclass(frozen=True)
class Anchor:
    """The end of the log at some time. Kept elsewhere, it proves that the later log still begins with the same rows.

    A person who passes an anchor to `verify` vouches for the rows up to it, sealed or not.
    """

    num_rows: int
    hash: bytes
    num_erased: int = field(default=0, compare=False)
    """How many rows had their contents erased, each named by a later row."""


async def verify(
    sessions: Sessions,
    *,
    peppers: Peppers,
    since: Anchor | None = None,
    on_progress: Callable[[int], None] = lambda _: None,
) -> Anchor:
    """Returns the end of the log. Rows may be written meanwhile. Raises BrokenChain."""
    num_rows, last = 0, GENESIS
    erasures = _Erasures()
    began_at: datetime | None = None
    async with sessions() as session:
        while True:
            async for row in _rows(session, after=num_rows or _LOWEST):
                last = _checked(row, num_rows + 1, last, since)
                erasures.note(row)
                began_at = began_at or row.at
                num_rows += 1
                if num_rows % _CHUNK == 0:
                    on_progress(num_rows)
            # One statement, so that the head and the rows are read at the same moment.
            end = (await session.execute(_END)).one()
            if end.num_rows is None or min(end.num_rows, end.max_position or 0) <= num_rows:
                break
        oldest_key = await session.scalar(select(func.min(ApiKey.created_at)))
    if since is not None and since.num_rows > num_rows:
        raise BrokenChain(f"the log ends with row {num_rows}, but had {since.num_rows} once")
    _check_end(end, Anchor(num_rows, last), since, peppers=peppers)
    erasures.check()
    if oldest_key is not None and (began_at is None or oldest_key < began_at):
        raise BrokenChain("there are keys from before the first row: the log does not begin where it began")
    return Anchor(num_rows, last, erasures.num_rows)


class _Erasures:
    """Erased rows and the later rows that name them. A row that was only made to look erased has no later row."""

    def __init__(self) -> None:
        self.num_rows = 0
        self._unnamed: dict[str, tuple[str, UUID]] = {}

    def note(self, row: Row[Any]) -> None:
        if row.is_erased:
            self.num_rows += 1
            self._unnamed[str(row.position)] = trace(Frame(*row[:_FRAME_END]), row.contents_hash, row.hash), row.id
        elif row.action == ERASE_ACTION:
            for position, named in json.loads(row.detail).get("rows", {}).items():
                if self._unnamed.get(position, ("",))[0] == named:
                    del self._unnamed[position]

    def check(self) -> None:
        """Raises BrokenChain."""
        if self._unnamed:
            position = min(self._unnamed, key=int)
            reason = "it looks erased, but no erasure names it as it is"
            raise BrokenChain(reason, position=int(position), entry_id=self._unnamed[position][1])


async def _rows(session: AsyncSession, *, after: int) -> AsyncIterator[Any]:
    while True:
        query = select(*_FRAME, *_CONTENTS, *_HASHES).where(AuditEntry.position > after).order_by(AuditEntry.position)
        rows = (await session.execute(query.limit(_CHUNK))).all()
        for row in rows:
            yield row
        if len(rows) < _CHUNK:
            return
        after = rows[-1].position


def _checked(row: Row[Any], position: int, last: bytes, since: Anchor | None) -> bytes:
    """Returns the row's hash. Raises BrokenChain."""
    place: dict[str, Any] = {"position": row.position, "entry_id": row.id}
    if row.position > position:
        raise BrokenChain(f"row {position} is missing: row {row.position} comes in its place", **place)
    if row.position < position:
        raise BrokenChain(f"row {row.position} stands before the first, or twice", **place)
    if not _is_linked(row, last):
        raise BrokenChain("it is not as it was written, or does not follow the row before", **place)
    if since is not None and position == since.num_rows and row.hash != since.hash:
        raise BrokenChain("the log up to here is another than it was", **place)
    if row.action == SEAL_ACTION and (since is None or position > since.num_rows + 1):
        raise BrokenChain(
            f"when it was written, no seal vouched for the rows before it; {_advice(position - 1, last)}", **place
        )
    return bytes(row.hash)


def _is_linked(row: Row[Any], last: bytes) -> bool:
    frame, contents = Frame(*row[:_FRAME_END]), Contents(*row[_FRAME_END:_CONTENTS_END])
    if row.is_erased and (contents != BLANK or row.salt is not None):
        return False
    if row.contents_hash is None:
        # For an old erased row, only `_Erasures` can tell whether it was altered.
        return bool(row.is_erased or (row.salt is None and link_old(last, frame, contents) == row.hash))
    if not row.is_erased and (row.salt is None or hash_contents(row.salt, contents) != row.contents_hash):
        return False
    return bool(link(last, frame, row.contents_hash) == row.hash)


def _check_end(end: Row[Any], found: Anchor, since: Anchor | None, *, peppers: Peppers) -> None:
    num_rows = found.num_rows
    if end.num_rows is None:
        raise BrokenChain(f"the head is missing, so that nobody knows whether the log ends with row {num_rows}")
    if end.num_rows > num_rows:
        raise BrokenChain(f"row {num_rows + 1} is missing, and with it the end: there were {end.num_rows} rows")
    if end.count > end.num_rows or num_rows > end.num_rows:
        raise BrokenChain("it stands behind the end", position=end.num_rows + 1)
    if end.hash != found.hash:
        raise BrokenChain("the head tells another hash of it, the last", position=num_rows)
    if found in (since, Anchor(0, GENESIS)) or is_sealed(end.seal, num_rows, found.hash, peppers=peppers):
        return
    raise BrokenChain(
        f"no seal under this pepper vouches for it, the last; {_advice(num_rows, found.hash)}", position=num_rows
    )


def _advice(num_rows: int, last: bytes) -> str:
    return f"if the log was right until then, verify what came since {num_rows}:{last.hex()}"
