"""Tables as JSON lines that do not depend on the SQL dialect, in members of about 8 MiB. The first line of each member
lists the columns; each further line is a row.
"""

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import IO, Any
from uuid import UUID

import msgspec
from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    ColumnElement,
    Connection,
    Double,
    Float,
    Integer,
    LargeBinary,
    String,
    Table,
    Text,
    TypeDecorator,
    Uuid,
    cast,
    column,
    insert,
    select,
    table,
)
from sqlalchemy.types import TypeEngine

from gateway.database import UtcDateTime
from tiergate.backup.archive import ArchiveWriter
from tiergate.backup.manifest import TABLES

MEMBER_BYTES = 8 << 20
ROWS_AT_ONCE = 1000


class _JsonText(TypeDecorator[str]):
    """JSON kept character by character, since the audit log's hashes are over its text."""

    impl = Text
    cache_ok = True

    def bind_expression(self, bindvalue: Any) -> ColumnElement[Any]:
        return cast(bindvalue, JSON)


_Kind = tuple[type[TypeEngine[Any]], type, TypeEngine[Any]]
# The declared type of a column, the Python type of its values, and the SQL type they are written with. The first kind
# that fits is used.
_KINDS: Mapping[str, _Kind] = {
    "time": (UtcDateTime, datetime, UtcDateTime()),
    "uuid": (Uuid, UUID, Uuid()),
    "bytes": (LargeBinary, bytes, LargeBinary()),
    "json": (JSON, str, Text().with_variant(_JsonText(), "postgresql")),
    "bool": (Boolean, bool, Boolean()),
    "integer": (Integer, int, BigInteger()),
    "number": (Float, float, Double()),
    "text": (String, str, Text()),
}


def dump_table(connection: Connection, dumped: Table, archive: ArchiveWriter) -> int:
    """Add all rows in a fixed order, and return their number."""
    # SQLAlchemy's names are a subclass of str.
    kinds = {str(each.name): kind_of(each.type) for each in dumped.columns}
    head = msgspec.json.encode(list(kinds.items()))
    read = (cast(each, Text).label(each.name) if kinds[each.name] == "json" else each for each in dumped.columns)
    query = select(*read).order_by(*_in_order(dumped)).execution_options(yield_per=ROWS_AT_ONCE)
    num_rows = 0
    lines: list[bytes] = [head]
    num_members = size = 0
    for row in connection.execute(query):
        lines.append(msgspec.json.encode(tuple(row)))
        num_rows += 1
        size += len(lines[-1])
        if size >= MEMBER_BYTES:
            _add(archive, dumped.name, num_members, lines)
            lines, size, num_members = [head], 0, num_members + 1
    if len(lines) > 1 or num_members == 0:
        _add(archive, dumped.name, num_members, lines)
    return num_rows


def load_rows(connection: Connection, member: str, content: IO[bytes]) -> int:
    """Insert the rows of one member into its table, and return their number."""
    name = member.removeprefix(TABLES).split("/")[0]
    columns = msgspec.json.decode(content.readline(), type=list[tuple[str, str]])
    written = table(name, *(column(each, _KINDS[kind][2]) for each, kind in columns))
    types = tuple(_KINDS[kind][1] | None for _, kind in columns)
    decode = msgspec.json.Decoder(tuple[types]).decode  # type: ignore[valid-type]
    keys = [each for each, _ in columns]
    num_rows = 0
    for lines in _batches(content):
        connection.execute(insert(written), [dict(zip(keys, decode(line), strict=True)) for line in lines])
        num_rows += len(lines)
    return num_rows


def kind_of(declared: TypeEngine[Any]) -> str:
    for name, (of, _, _) in _KINDS.items():
        if isinstance(declared, of):
            return name
    raise TypeError(f"no backup knows columns of {declared!r}")


def _in_order(dumped: Table) -> Iterator[ColumnElement[Any]]:
    """Rows that refer to another row of the same table come after those that refer to none."""
    for each in dumped.columns:
        if any(key.column.table is dumped for key in each.foreign_keys):
            yield each.is_not(None)
    yield from dumped.primary_key


def _add(archive: ArchiveWriter, name: str, number: int, lines: list[bytes]) -> None:
    content = b"\n".join(lines) + b"\n"
    archive.add(f"{TABLES}{name}/{number:06}.jsonl", len(content), [content])


def _batches(lines: Iterable[bytes]) -> Iterator[list[bytes]]:
    batch: list[bytes] = []
    for line in lines:
        batch.append(line)
        if len(batch) == ROWS_AT_ONCE:
            yield batch
            batch = []
    if batch:
        yield batch
