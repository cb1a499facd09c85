"""Usage in ClickHouse stays, for its sums, under pseudonyms that nobody can trace back: the salt ends with the job.

Columns of sorting keys cannot be changed, so a tenant's rows are copied under the pseudonym and then deleted. In a
table that replaces rows by their key, a second copy is the same row; for any other table we record that the copy is
complete.
"""

import asyncio
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from clickhouse_connect.driver.client import Client
from clickhouse_connect.driver.exceptions import ClickHouseError

from gateway.erasure.subject import Counts, Stores, Subject, Waits, note_progress
from gateway.metering.schema import connect_migrated

_DEADLINE_S = 3600
_SYNC = {"mutations_sync": 2}
_KEY = "UUIDNumToString(toFixedString(substring(SHA256(concat({salt:String}, key_id)), 1, 16), 16))"
_USER = """if(ifNull(user_id, '') = '', user_id,
concat('erased-', lower(hex(substring(SHA256(concat({salt:String}, assumeNotNull(user_id))), 1, 8)))))"""
_NO_NAMES = {
    "client_request_id": "NULL",
    "session_id": "NULL",
    "error_message": "NULL",
    "decision": "NULL",
}
T = TypeVar("T")


class _Table(NamedTuple):
    name: str
    is_replacing: bool
    replaced: dict[str, str]
    """Column -> the expression that replaces it. The tenant is replaced as well."""
    stamped: str | None = None
    """The column that distinguishes rows from before a copy from those that came since."""

    def until(self, row: str = "") -> str:
        return f"toUnixTimestamp64Milli({row}{self.stamped})" if self.stamped else "0"


_EVENTS = _Table(
    "usage_events",
    True,
    {
        "key_id": _KEY,
        "user_id": _USER,
        **_NO_NAMES,
        # Whether the request was part of a batch counts for its price.
        "batch_id": "if(batch_id IS NULL, NULL, 'erased')",
        # The adapter's name is the tenant's own.
        "requested_model": "if(adapter_id IS NULL, requested_model, 'erased')",
        # Makes the rollups of the hour be computed again.
        "inserted_at": "now64(3, 'UTC')",
    },
    "inserted_at",
)
TABLES = (
    _EVENTS,
    _Table("invoiced_events", False, {}),
    _Table("usage_hours", True, {"key_id": _KEY}),
    _Table("usage_days", True, {"key_id": _KEY}),
    _Table("refusals", True, {"key_id": _KEY}),
    _Table("admissions", True, {}),
)
_COPIES_AT_ONCE = 200
"""Limited because the ids are sent in the URL."""
_ROUNDS = 5
"""Rows that come during one round are moved in the next."""


async def anonymise_usage(stores: Stores, subject: Subject) -> Counts:
    if stores.clickhouse_url is None:
        return {}
    if subject.user is not None:
        return {"events": await in_clickhouse(stores, lambda client: _anonymise_user(client, subject))}
    counts: Counts = {}
    for table in TABLES:
        counts[table.name] = await _move(stores, subject, table)
    return counts


async def move_late_usage(stores: Stores, subject: Subject) -> None:
    """Handle usage that came after the job's end.

    Copies of events that are stored under the old pseudonym are deleted; the rest gets a new pseudonym.
    """
    if stores.clickhouse_url is not None:
        await in_clickhouse(stores, lambda client: _delete_copies(client, subject))
        await anonymise_usage(stores, subject)


async def count_usage(stores: Stores, subject: Subject) -> int:
    """Rows that still name the subject."""
    if stores.clickhouse_url is None:
        return 0
    return await in_clickhouse(stores, lambda client: _count(client, subject))


async def sessions_of_user(stores: Stores, subject: Subject) -> list[str]:
    """The end user's sessions in which no other end user took part."""
    query = """SELECT session_id FROM usage_events WHERE tenant_id = {tenant:String} AND session_id IS NOT NULL
GROUP BY session_id HAVING countIf(ifNull(user_id, '') != {user:String}) = 0"""
    if stores.clickhouse_url is None:
        return []
    rows = await in_clickhouse(stores, lambda client: client.query(query, parameters=_names(subject)).result_rows)
    return [row[0] for row in rows]


async def in_clickhouse(stores: Stores, call: Callable[[Client], T]) -> T:
    """Raises Waits while ClickHouse is away."""
    try:
        return await asyncio.to_thread(_with_client, stores.clickhouse_url, call)
    except (ClickHouseError, OSError) as error:
        raise Waits("clickhouse", str(error).splitlines()[0] if str(error) else type(error).__name__) from error


def _with_client(url: str | None, call: Callable[[Client], T]) -> T:
    assert url is not None
    client = connect_migrated(url, deadline_s=_DEADLINE_S)
    try:
        return call(client)
    finally:
        client.close()


async def _move(stores: Stores, subject: Subject, table: _Table) -> int:
    if table.is_replacing:
        return await in_clickhouse(stores, lambda client: _move_replacing(client, subject, table))
    if not subject.progress.get(f"copied_{table.name}"):
        await in_clickhouse(stores, lambda client: _copy_anew(client, subject, table))
        await note_progress(stores, subject, **{f"copied_{table.name}": True})
    return await in_clickhouse(stores, lambda client: _delete(client, subject, table, until=0))


def _move_replacing(client: Client, subject: Subject, table: _Table) -> int:
    num_rows = 0
    for _ in range(_ROUNDS):
        if not _num_rows(client, subject.tenant, table):
            break
        num_rows += _delete(client, subject, table, until=_copy(client, subject, table))
    return num_rows


def _copy_anew(client: Client, subject: Subject, table: _Table) -> None:
    # Delete what an interrupted run has copied; its source is complete.
    client.command(
        f"ALTER TABLE {table.name} DELETE WHERE tenant_id = {{pseudonym:String}}",
        parameters=_names(subject),
        settings=_SYNC,
    )
    _copy(client, subject, table)


def _copy(client: Client, subject: Subject, table: _Table) -> int:
    """Returns the newest stamp that was copied; 0 for a table without stamps. Raises Waits."""
    newest = f"SELECT max({table.until()}) FROM {table.name} WHERE tenant_id = {{tenant:String}}"
    until = int(client.query(newest, parameters=_names(subject)).result_rows[0][0])
    replaced = {"tenant_id": "{pseudonym:String}"} | table.replaced
    columns = ", ".join(f"{value} AS {name}" for name, value in replaced.items())
    client.command(
        f"INSERT INTO {table.name} SELECT * REPLACE({columns}) FROM {table.name} AS e"
        # Without `e.` the name would stand for the replacement of the column.
        f" WHERE e.tenant_id = {{tenant:String}} AND {table.until('e.')} <= {{until:Int64}}",
        parameters=_names(subject) | {"until": until},
    )
    _check_copy(client, subject, table, until)
    return until


def _check_copy(client: Client, subject: Subject, table: _Table, until: int) -> None:
    """Called before the source is deleted. Raises Waits if rows are missing."""
    final = " FINAL" if table.is_replacing else ""
    until_then = f"{table.until()} <= {{until:Int64}}"
    count = f"SELECT count() FROM {table.name}{final} WHERE tenant_id = {{name:String}} AND {until_then}"
    source = {"name": subject.tenant, "until": until}
    num_rows = client.query(count, parameters=source).result_rows[0][0]
    copied = {"name": str(subject.pseudonym), "until": 2**62}
    num_copied = client.query(count, parameters=copied).result_rows[0][0]
    if num_copied < num_rows:
        raise Waits("clickhouse", f"{table.name} has {num_copied} of {num_rows} rows under the pseudonym")


def _delete(client: Client, subject: Subject, table: _Table, *, until: int) -> int:
    num_rows = _num_rows(client, subject.tenant, table)
    statement = (
        f"ALTER TABLE {table.name} DELETE WHERE tenant_id = {{tenant:String}} AND {table.until()} <= {{until:Int64}}"
    )
    client.command(statement, parameters=_names(subject) | {"until": until}, settings=_SYNC)
    return num_rows


def _num_rows(client: Client, tenant: str, table: _Table) -> int:
    query = f"SELECT count() FROM {table.name} WHERE tenant_id = {{tenant:String}}"
    return int(client.query(query, parameters={"tenant": tenant}).result_rows[0][0])


def _delete_copies(client: Client, subject: Subject) -> None:
    late = "SELECT request_id FROM usage_events WHERE tenant_id = {tenant:String}"
    first, last = (late.replace("request_id", f"{end}(timestamp)") for end in ("min", "max"))
    copies = f"""SELECT DISTINCT request_id FROM usage_events WHERE tenant_id != {{tenant:String}}
AND timestamp BETWEEN ({first}) AND ({last})
AND request_id IN ({late}) LIMIT {_COPIES_AT_ONCE}"""
    gone = "ALTER TABLE usage_events DELETE WHERE tenant_id = {tenant:String} AND request_id IN {ids:Array(String)}"
    names = _names(subject)
    while _num_rows(client, subject.tenant, _EVENTS):
        ids = [row[0] for row in client.query(copies, parameters=names).result_rows]
        if not ids:
            return
        client.command(gone, parameters=names | {"ids": ids}, settings=_SYNC)


def _anonymise_user(client: Client, subject: Subject) -> int:
    num_rows = _count(client, subject)
    if num_rows:
        changes = ", ".join(f"{name} = {value}" for name, value in ({"user_id": _USER} | _NO_NAMES).items())
        client.command(
            f"ALTER TABLE usage_events UPDATE {changes}"
            " WHERE tenant_id = {tenant:String} AND user_id = {user:String}",
            parameters=_names(subject),
            settings=_SYNC,
        )
    return num_rows


def _count(client: Client, subject: Subject) -> int:
    if subject.user is None:
        return sum(_num_rows(client, subject.tenant, table) for table in TABLES)
    query = "SELECT count() FROM usage_events WHERE tenant_id = {tenant:String} AND user_id = {user:String}"
    return int(client.query(query, parameters=_names(subject)).result_rows[0][0])


def _names(subject: Subject) -> dict[str, Any]:
    return {
        "tenant": subject.tenant,
        "pseudonym": str(subject.pseudonym),
        "salt": subject.salt.hex(),
        "user": subject.user or "",
    }
