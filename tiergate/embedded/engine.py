"""chDB, which is ClickHouse's engine within this process: one directory, and a new handle for each statement."""

import fcntl
import os
import re
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import chdb

from gateway.private_folder import make_private
from tiergate.embedded.access import Forbidden, Rules, write_config
from tiergate.embedded.statements import Statement, quote_name, quote_string

# Start options of the whole engine. It is mostly idle on a machine that also runs models, so its caches are small.
_MEBIBYTE = 1 << 20
_OPTIONS = {
    "max_server_memory_usage": 1024 * _MEBIBYTE,
    "mark_cache_size": 64 * _MEBIBYTE,
    "index_mark_cache_size": 16 * _MEBIBYTE,
    "primary_index_cache_size": 64 * _MEBIBYTE,
    "query_condition_cache_size": 16 * _MEBIBYTE,
    "compiled_expression_cache_size": 16 * _MEBIBYTE,
    "max_thread_pool_size": 64,
    "max_io_thread_pool_size": 8,
}
# Defaults of every statement; a request may override them.
_SETTINGS = {
    "max_threads": "2",
    "max_memory_usage": str(768 * _MEBIBYTE),
    "max_execution_time": "30",
    "date_time_input_format": "best_effort",
}
_TEXT_TYPES = "String|URI|Map|char"
DATABASE = "tiergate"
"""The database of requests that name none. chDB's own `default` gives access to the file system, so it is not used."""
_CONFIG_NAME = "engine.xml"
_CODE = re.compile(r"Code: (\d+)\. ")
_UNKNOWN_ERROR = 1002
_NOT_ENOUGH_SPACE = 243


class EngineError(Exception):
    """An exception of the engine; the message begins with `Code: N. DB::Exception: `."""

    def __init__(self, message: str) -> None:
        # chDB puts its own text before the engine's.
        found = _CODE.search(message)
        self.code = int(found[1]) if found else _UNKNOWN_ERROR
        self.message = message[found.start() :] if found else f"Code: {self.code}. DB::Exception: {message}"
        super().__init__(self.message)


@dataclass(frozen=True)
class Answer:
    body: bytes
    num_read_rows: int = 0
    num_read_bytes: int = 0
    num_written_rows: int = 0
    num_written_bytes: int = 0
    elapsed_ns: int = 0


class Engine:
    """Owns the directory while it is open. `run` may be called from several threads at once."""

    def __init__(self, data_dir: Path) -> None:
        """Raises EngineError if another process uses the directory, OSError if it cannot be written."""
        make_private(data_dir)
        self._path = os.path.realpath(data_dir)
        if set(self._path) & set("?&%#"):
            raise EngineError(f"the engine cannot use a directory with ?, &, % or # in its name: {self._path}")
        self._lock_fd = _lock(data_dir / "tiergate.lock")
        try:
            config = Path(self._path, _CONFIG_NAME)
            write_config(config)
            # The engine lives as long as any handle, and takes its options from the first one. Without our
            # configuration file it would read a `config.xml` from the working directory.
            options = urlencode(_OPTIONS | {"config-file": str(config)}, quote_via=quote, safe="/")
            self._first = chdb.connect(f"{self._path}?{options}")
            self.version, self.timezone = self._column("SELECT arrayJoin([version(), timezone()])")
            self._check_grants()
            self._first.query(f"CREATE DATABASE IF NOT EXISTS {DATABASE}")
            self._rules = Rules.of(
                table_functions=self._column("SELECT name FROM system.table_functions"),
                text_settings=self._column(f"SELECT name FROM system.settings WHERE match(type, '{_TEXT_TYPES}')"),
            )
        except BaseException:
            os.close(self._lock_fd)
            raise

    def close(self) -> None:
        self._first.close()
        os.close(self._lock_fd)

    def run(self, statement: Statement, *, is_read_only: bool = False) -> Answer:
        """Raises EngineError."""
        started_ns = time.monotonic_ns()
        settings = _SETTINGS | dict(statement.settings)
        try:
            with self._handle() as handle:
                self._rules.check(_format(handle, statement), statement.settings)
                database = statement.database if statement.database not in (None, "", "default") else DATABASE
                handle.query(f"USE {quote_name(database)}")
                pairs = ", ".join(f"{name} = {quote_string(value)}" for name, value in settings.items())
                handle.query(f"SET {pairs}")
                if is_read_only:
                    handle.query("SET readonly = 2")
                has_data = statement.data is not None
                answer = _insert(handle, statement, self._path) if has_data else _query(handle, statement)
        except Forbidden as error:
            raise EngineError(f"Code: 497. DB::Exception: {error} may not be used here. (ACCESS_DENIED)") from error
        except (chdb.ChdbError, RuntimeError) as error:
            raise EngineError(str(error)) from error
        except OSError as error:
            raise EngineError(f"Code: {_NOT_ENOUGH_SPACE}. DB::Exception: {error}") from error
        return Answer(*answer, elapsed_ns=time.monotonic_ns() - started_ns)

    def _column(self, sql: str) -> list[str]:
        text: bytes = self._first.query(sql, "TSVRaw").bytes()
        return text.decode().splitlines()

    def _check_grants(self) -> None:
        """Raises EngineError if the engine ignored our configuration, since it would then allow everything."""
        grants = self._column("SHOW GRANTS")
        if len(grants) != 1 or "CREATE VIEW" not in grants[0] or "SOURCES" in grants[0]:
            raise EngineError(f"the engine did not take its configuration: {'; '.join(grants)}")

    @contextmanager
    def _handle(self) -> Iterator[Any]:
        """A new handle. It holds what `USE` and `SET` change, so one per statement isolates requests, for 0.7 ms."""
        handle = chdb.connect(self._path)
        try:
            yield handle
        finally:
            handle.close()


def _format(handle: Any, statement: Statement) -> str:
    """The statement as the engine parses it. Several statements are an error, since only the first would be checked."""
    sql = statement.sql if statement.data is None else f"{statement.sql} FORMAT {statement.format}"
    # Parameter values are escaped.
    escaped = sql.replace("\\", "\\\\").replace("\t", "\\t").replace("\n", "\\n")
    formatted: bytes = handle.query("SELECT formatQuery({sql:String})", "TSVRaw", params={"sql": escaped}).bytes()
    return formatted.decode()


def _query(handle: Any, statement: Statement) -> tuple[bytes, int, int, int, int]:
    result = handle.query(statement.sql, statement.format, params=dict(statement.parameters))
    return (
        result.bytes() or b"",
        result.storage_rows_read(),
        result.storage_bytes_read(),
        result.rows_written(),
        result.bytes_written(),
    )


def _insert(handle: Any, statement: Statement, folder: str) -> tuple[bytes, int, int, int, int]:
    """Insert the statement's data from an unnamed file in `folder`.

    chDB's own streaming insert reports success even if the table refused the rows (a constraint, too many partitions, a
    full disk), and data within the statement is cut at `max_query_size`.
    """
    assert statement.data is not None
    with tempfile.TemporaryFile(dir=folder) as file:
        file.write(statement.data)
        file.seek(0)
        source = f"FROM INFILE '/dev/fd/{file.fileno()}' COMPRESSION 'none' FORMAT {statement.format}"
        result = handle.query(f"{statement.sql} {source}", "Null")
    return b"", 0, 0, result.rows_written(), result.bytes_written()


def _lock(path: Path) -> int:
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        raise EngineError(f"another process has the directory {path.parent}") from None
    return fd
