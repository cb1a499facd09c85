"""The SQLite file of one outbox: requests under way, and closed events that wait to be shipped.

The owner writes `under_way` and adds to `closed`; the consumer reads and deletes from `closed`, in another process.
"""

import logging
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from gateway.metering.admissions import hour_of
from gateway.metering.records import encode_counts
from protocol.counts import AdmissionCount, GatewayCounts, RefusalCount
from protocol.usage import PriceLine, UsageEvent

_log = logging.getLogger(__name__)

JOURNAL_FILE = "events.sqlite"
_SCHEMA = """
CREATE TABLE IF NOT EXISTS under_way (
    request_id TEXT PRIMARY KEY, event BLOB NOT NULL, completion_tokens INTEGER, cost_nanousd INTEGER
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS progress (
    request_id TEXT PRIMARY KEY, completion_tokens INTEGER NOT NULL, price_lines TEXT NOT NULL
) WITHOUT ROWID;
CREATE TRIGGER IF NOT EXISTS forget_progress AFTER DELETE ON under_way BEGIN
    DELETE FROM progress WHERE request_id = old.request_id;
END;
CREATE TABLE IF NOT EXISTS closed (seq INTEGER PRIMARY KEY AUTOINCREMENT, event BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS admissions (
    hour_s INTEGER, tenant_id TEXT, num_admitted INTEGER, num_closed INTEGER, told INTEGER DEFAULT 0,
    PRIMARY KEY (hour_s, tenant_id)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS counts (seq INTEGER PRIMARY KEY AUTOINCREMENT, record BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS refused (seq INTEGER PRIMARY KEY, event BLOB NOT NULL, reason TEXT NOT NULL);
"""
_OPEN = "INSERT OR REPLACE INTO under_way (request_id, event) VALUES (?, ?)"
# In a separate table from the events: rows are a tenth as long, so thousands of notes a second rewrite few pages.
_PROGRESS = "INSERT OR REPLACE INTO progress (request_id, completion_tokens, price_lines) VALUES (?, ?, ?)"
_CLOSE = "INSERT INTO closed (event) VALUES (?)"
# The parameter is a JSON array of request ids.
_FORGET = "DELETE FROM under_way WHERE request_id IN (SELECT value FROM json_each(?))"
# Files from versions without the table `progress` hold the notes beside the events.
_UNDER_WAY = """SELECT event, coalesce(progress.completion_tokens, under_way.completion_tokens), cost_nanousd,
coalesce(progress.price_lines, under_way.price_lines) FROM under_way LEFT JOIN progress USING (request_id)"""
_COUNT = """INSERT INTO admissions (hour_s, tenant_id, num_admitted, num_closed) VALUES (?, ?, ?, ?)
ON CONFLICT (hour_s, tenant_id) DO UPDATE SET
num_admitted = num_admitted + excluded.num_admitted, num_closed = num_closed + excluded.num_closed"""
_COUNTED = """SELECT hour_s, tenant_id, num_admitted, num_closed FROM admissions
WHERE told < num_admitted + num_closed LIMIT ?"""
_TOLD = "UPDATE admissions SET told = ? WHERE hour_s = ? AND tenant_id = ?"
_OUTDATED = f"""DELETE FROM admissions
WHERE told = num_admitted + num_closed AND hour_s < (SELECT max(hour_s) FROM admissions) - {7 * 86_400}"""
COUNTS_IN_ONE = 500
_ROWS_IN_ONE = 64
"""Rows of one statement. sqlite3 releases the GIL for each statement, and beside a busy event loop getting it back
takes longer than the statement."""
_CACHED_STATEMENTS = 5 * _ROWS_IN_ONE
_OLD_NAME = "rejected"
"""The name of `refused` in files of the first version."""
encode_event = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(UsageEvent).decode
_decode_lines = msgspec.json.Decoder(tuple[PriceLine, ...]).decode


class Progress(NamedTuple):
    request_id: str
    completion_tokens: int
    price_lines: tuple[PriceLine, ...]


class ClosedEvent(NamedTuple):
    seq: int
    """Increases with every close; never reused within a file."""
    event: UsageEvent


class Journal:
    """Methods raise sqlite3.Error when the disk fails. Use from one thread at a time."""

    def __init__(self, connection: sqlite3.Connection, incarnation: str) -> None:
        self._connection = connection
        self._incarnation = incarnation
        self._mode = "FULL"

    @classmethod
    def open(cls, folder: Path, *, must_exist: bool = False) -> "Journal":
        path = folder / JOURNAL_FILE
        if not must_exist and not path.exists():
            _create(path)
        connection = sqlite3.connect(
            f"{path.absolute().as_uri()}?mode=rw",
            uri=True,
            isolation_level=None,
            check_same_thread=False,
            timeout=10,
            cached_statements=_CACHED_STATEMENTS,
        )
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = FULL")
            connection.executescript(_SCHEMA)
            _add_price_lines(connection)
            _move_old_rows(connection)
        except BaseException:
            connection.close()
            raise
        return cls(connection, folder.name)

    def close(self) -> None:
        self._connection.close()

    def write(
        self,
        opened: Sequence[tuple[str, bytes]] = (),
        progress: Sequence[Progress] = (),
        closed: Sequence[bytes] = (),
        forgotten: Sequence[str] = (),
        admissions: Sequence[AdmissionCount] = (),
    ) -> None:
        """Write everything atomically; synced to the disk exactly when `closed` is not empty.

        opened: request ids and encoded events. closed: encoded events. forgotten: ids of requests that are no longer
        under way. admissions: added to those counted so far. Raises OverflowError for a count of 2^63 or more.
        """
        # In WAL mode NORMAL does not sync a commit, and the next FULL one syncs everything before it.
        self._synchronous("FULL" if closed else "NORMAL")
        closed_rows = [(event.decode(),) for event in closed]
        if len(closed) <= _ROWS_IN_ONE and not (opened or progress or forgotten or admissions):
            # One statement is a transaction by itself, and releases the GIL once instead of three times.
            _insert(self._connection, _CLOSE, closed_rows)
            return
        with _transaction(self._connection) as run:
            _insert(run, _OPEN, [(request_id, event.decode()) for request_id, event in opened])
            _insert(run, _PROGRESS, [(*note[:2], msgspec.json.encode(note.price_lines).decode()) for note in progress])
            _insert(run, _CLOSE, closed_rows)
            if forgotten:
                run.execute(_FORGET, (msgspec.json.encode(forgotten).decode(),))
            _insert(run, _COUNT, [msgspec.structs.astuple(count) for count in admissions])

    def probe(self) -> None:
        """Raises sqlite3.Error if the disk does not take writes."""
        self._synchronous("FULL")
        version = self._connection.execute("PRAGMA user_version").fetchone()[0]
        self._connection.execute(f"PRAGMA user_version = {(version + 1) % 2}")

    def close_lost(self) -> list[UsageEvent]:
        """Turn all requests under way into closed events with status `lost` and the tokens known, and return these."""
        lost = [_lost(*row) for row in self._connection.execute(_UNDER_WAY)]
        if lost:
            self.write(
                closed=[encode_event(event) for event in lost],
                forgotten=[event.request_id for event in lost],
                admissions=[AdmissionCount(*hour_of(event), 0, 1) for event in lost],
            )
        self.tell_counts()
        return lost

    def tell_counts(self, refusals: Sequence[RefusalCount] = ()) -> None:
        """Put all counts that have changed into the table from which they are shipped. Not synced."""
        self._synchronous("NORMAL")
        with _transaction(self._connection) as run:
            for start in range(0, len(refusals), COUNTS_IN_ONE):
                self._tell(run, refusals=tuple(refusals[start : start + COUNTS_IN_ONE]))
            while rows := run.execute(_COUNTED, (COUNTS_IN_ONE,)).fetchall():
                self._tell(run, admissions=tuple(AdmissionCount(*row) for row in rows))
                run.executemany(_TOLD, ((admitted + closed, *key) for *key, admitted, closed in rows))
            run.execute(_OUTDATED)

    def _tell(self, run: sqlite3.Connection, **counts: Any) -> None:
        told = GatewayCounts(gateway=self._incarnation, **counts)
        run.execute("INSERT INTO counts (record) VALUES (?)", (encode_counts(told),))

    def read_counts(self, limit: int = 100) -> list[tuple[int, bytes]]:
        """The oldest counts, encoded. Ship them after the events closed before them, so that counts never run ahead of
        events."""
        return self._connection.execute("SELECT seq, record FROM counts ORDER BY seq LIMIT ?", (limit,)).fetchall()

    def delete_counts(self, seqs: Iterable[int]) -> None:
        self._synchronous("NORMAL")
        with _transaction(self._connection) as run:
            run.executemany("DELETE FROM counts WHERE seq = ?", ((seq,) for seq in seqs))

    def read_closed(self, limit: int) -> list[ClosedEvent]:
        """The oldest closed events. Rows that cannot be decoded are set aside."""
        rows = self._connection.execute("SELECT seq, event FROM closed ORDER BY seq LIMIT ?", (limit,)).fetchall()
        found = []
        for seq, event in rows:
            try:
                found.append(ClosedEvent(seq, _decode(event)))
            except msgspec.DecodeError as error:
                _log.error("set aside what is no usage event, %.200r: %s", event, error)
                self.refuse(seq, str(error))
        return found

    def read_newest(self, limit: int) -> list[UsageEvent]:
        """The events closed last, newest first, without those that cannot be decoded."""
        query = "SELECT CAST(event AS BLOB) FROM closed ORDER BY seq DESC LIMIT ?"
        found = []
        for (event,) in self._connection.execute(query, (limit,)):
            try:
                found.append(_decode(event))
            except msgspec.DecodeError:
                continue
        return found

    def read_encoded(self, limit: int) -> list[tuple[int, bytes]]:
        """`seq` and the JSON of the oldest closed events, as they were written."""
        query = "SELECT seq, CAST(event AS BLOB) FROM closed ORDER BY seq LIMIT ?"
        return self._connection.execute(query, (limit,)).fetchall()

    def count_closed(self) -> int:
        return int(self._connection.execute("SELECT count(*) FROM closed").fetchone()[0])

    def estimate_closed(self) -> int:
        """As `count_closed`, but at no cost. May be a few too many, because events that were set aside leave gaps."""
        # Two questions: SQLite walks the whole table for a query with both min and max.
        query = "SELECT (SELECT min(seq) FROM closed), (SELECT max(seq) FROM closed)"
        first, last = self._connection.execute(query).fetchone()
        return 0 if first is None else int(last - first + 1)

    def used_bytes(self) -> int:
        """The size of the file without its free pages. The write-ahead log beside it is not counted."""
        names = ("page_count", "freelist_count", "page_size")
        num_pages, num_free, page_bytes = (self._connection.execute(f"PRAGMA {name}").fetchone()[0] for name in names)
        return int((num_pages - num_free) * page_bytes)

    def delete_closed(self, seqs: Iterable[int]) -> None:
        """Not synced: events whose deletion is undone by a power cut are shipped again and deduplicated."""
        self._synchronous("NORMAL")
        with _transaction(self._connection) as run:
            run.executemany("DELETE FROM closed WHERE seq BETWEEN ? AND ?", _runs(seqs))

    def count_refused(self) -> int:
        return int(self._connection.execute("SELECT count(*) FROM refused").fetchone()[0])

    def refuse(self, seq: int, reason: str) -> None:
        """Set aside an event that ClickHouse refuses because of its content. It stays in the file for the operator."""
        with _transaction(self._connection) as run:
            run.execute("INSERT INTO refused SELECT seq, event, ? FROM closed WHERE seq = ?", (reason, seq))
            run.execute("DELETE FROM closed WHERE seq = ?", (seq,))

    def read_refused(self) -> list[tuple[bytes, str]]:
        """Events and reasons, oldest first."""
        query = "SELECT CAST(event AS BLOB), reason FROM refused ORDER BY seq"
        return self._connection.execute(query).fetchall()

    def replay_refused(self) -> int:
        """Close the refused events again, so that they are shipped once more. Returns their number."""
        self._synchronous("FULL")
        with _transaction(self._connection) as run:
            num_events = run.execute("INSERT INTO closed (event) SELECT event FROM refused ORDER BY seq").rowcount
            run.execute("DELETE FROM refused")
        return int(num_events)

    def _synchronous(self, mode: str) -> None:
        if mode != self._mode:
            self._connection.execute(f"PRAGMA synchronous = {mode}")
            self._mode = mode

    def is_empty(self) -> bool:
        tables = ("under_way", "closed", "refused", "counts")
        query = f"SELECT EXISTS ({' UNION ALL '.join(f'SELECT 1 FROM {table}' for table in tables)})"
        return not self._connection.execute(query).fetchone()[0]


def _runs(seqs: Iterable[int]) -> Iterator[tuple[int, int]]:
    """First and last of each run of consecutive numbers, so that one statement deletes thousands of neighbours."""
    ordered = sorted(seqs)
    starts = [at for at, seq in enumerate(ordered) if at == 0 or ordered[at - 1] + 1 != seq]
    ends = [*(start - 1 for start in starts[1:]), len(ordered) - 1]
    for start, end in zip(starts, ends, strict=False):
        yield ordered[start], ordered[end]


def _insert(connection: sqlite3.Connection, statement: str, rows: Sequence[tuple[Any, ...]]) -> None:
    """Execute a statement with `VALUES` for all the rows, many at once."""
    for start in range(0, len(rows), _ROWS_IN_ONE):
        some = rows[start : start + _ROWS_IN_ONE]
        connection.execute(_for_rows(statement, len(some[0]), len(some)), list(chain.from_iterable(some)))


@lru_cache(maxsize=_CACHED_STATEMENTS)
def _for_rows(statement: str, num_columns: int, num_rows: int) -> str:
    row = f"({', '.join('?' * num_columns)})"
    return statement.replace(row, ", ".join([row] * num_rows))


@contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield connection
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _create(path: Path) -> None:
    """Make the whole file under another name first: without its tables, the ledger would take it for damaged."""
    draft = path.with_name(f"{path.name}-new")
    # What a crash has left of a draft, or of the log of a file that is gone.
    for left in path.parent.glob(f"{path.name}-*"):
        left.unlink()
    with closing(sqlite3.connect(draft, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.executescript(f"BEGIN; {_SCHEMA} COMMIT;")
        # Closing would do it, too, but say nothing if the disk is full.
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    draft.rename(path)


def _add_price_lines(connection: sqlite3.Connection) -> None:
    """Upgrade a file of the first version, whose progress notes had only `cost_nanousd`."""
    query = "SELECT EXISTS (SELECT 1 FROM pragma_table_info('under_way') WHERE name = 'price_lines')"
    if not connection.execute(query).fetchone()[0]:
        with _transaction(connection) as run:
            # Checked again under the lock, since the consumer and the owner may be opening the file at the same time.
            if not run.execute(query).fetchone()[0]:
                run.execute("ALTER TABLE under_way ADD COLUMN price_lines TEXT")


def _move_old_rows(connection: sqlite3.Connection) -> None:
    query = "SELECT EXISTS (SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?)"
    if connection.execute(query, (_OLD_NAME,)).fetchone()[0]:
        with _transaction(connection) as run:
            run.execute(f"INSERT OR IGNORE INTO refused SELECT seq, event, reason FROM {_OLD_NAME}")
            run.execute(f"DROP TABLE {_OLD_NAME}")


def _lost(event: bytes, completion_tokens: int | None, cost_nanousd: int | None, price_lines: str | None) -> UsageEvent:
    lost = msgspec.structs.replace(_decode(event), status="lost")
    if completion_tokens is not None:
        lines = _decode_lines(price_lines) if price_lines is not None else ()
        cost_nanousd = sum(line.amount_nanousd for line in lines) if price_lines is not None else cost_nanousd
        lost = msgspec.structs.replace(
            lost, completion_tokens=completion_tokens, cost_nanousd=cost_nanousd or 0, price_lines=lines
        )
    return lost
