import socket
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

import clickhouse_connect
import httpx
import pytest
from clickhouse_connect.driver.client import Client
from clickhouse_connect.driver.exceptions import DatabaseError

from tests.support.clickhouse import ClickHouseProcess, running_clickhouse, spawn_clickhouse
from tests.support.ports import free_port

TABLE = """
CREATE TABLE rows (a UInt64, s String, at DateTime64(6, 'UTC'), n Nullable(Float64), l LowCardinality(String))
ENGINE = MergeTree ORDER BY a SETTINGS fsync_after_insert = 1, fsync_part_directory = 1"""
NOW = datetime(2026, 3, 4, 5, 6, 7, 891234, tzinfo=UTC)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClickHouseProcess]:
    with running_clickhouse(tmp_path_factory.mktemp("clickhouse")) as running:
        connect(running).command(TABLE)
        yield running


def connect(server: ClickHouseProcess, **options: object) -> Client:
    return clickhouse_connect.get_client(dsn=server.url, autogenerate_session_id=False, **options)


@pytest.mark.parametrize("compress", [False, "gzip", "lz4", "zstd"])
def test_rows_come_back_as_they_went_in(server: ClickHouseProcess, compress: bool | str) -> None:
    client = connect(server, compress=compress)
    client.command("TRUNCATE TABLE rows")
    rows = [[i, f"a'\n\t\\{i}", NOW, None if i % 2 else i / 3, "same"] for i in range(3000)]
    summary = client.insert("rows", rows, column_names=["a", "s", "at", "n", "l"])
    assert summary.written_rows == 3000
    result = client.query("SELECT * FROM rows ORDER BY a", column_tzs={"at": "UTC"}, tz_mode="aware")
    assert [list(row) for row in result.result_rows] == rows


def test_values_are_bound_on_the_server(server: ClickHouseProcess) -> None:
    evil = "'; DROP TABLE rows; -- \\ \n \t {x:String}"
    sql = "SELECT {x:String}, {y:UInt64}, {z:Nullable(String)}"
    [row] = connect(server).query(sql, parameters={"x": evil, "y": 2**64 - 1, "z": None}).result_rows
    assert row == (evil, 2**64 - 1, None)


@pytest.mark.parametrize(
    ("sql", "status", "code"),
    [("SELECT nope", 400, "47"), ("SELECT * FROM nope", 404, "60"), ("SELEC 1", 400, "62"), ("", 400, "36")],
)
def test_an_exception_has_a_status_a_code_and_a_text(
    server: ClickHouseProcess, sql: str, status: int, code: str
) -> None:
    reply = httpx.post(server.url, content=sql)
    assert (reply.status_code, reply.headers["x-clickhouse-exception-code"]) == (status, code)
    assert reply.text.startswith(f"Code: {code}. DB::Exception: ")


def test_a_broken_block_inserts_nothing(server: ClickHouseProcess) -> None:
    client = connect(server)
    client.command("TRUNCATE TABLE rows")
    with pytest.raises(DatabaseError):
        client.raw_insert("rows", ["a"], b"\x01\x05\x01a\x06UInt64\x00", fmt="Native")
    assert client.command("SELECT count() FROM rows") == 0


@pytest.mark.parametrize(
    ("table", "code"),
    [
        ("CREATE TABLE {} (a UInt64, CONSTRAINT small CHECK a < 150) ENGINE = MergeTree ORDER BY a", 469),
        ("CREATE TABLE {} (a UInt64) ENGINE = MergeTree PARTITION BY a ORDER BY a", 252),
    ],
)
def test_rows_that_the_table_refuses_are_not_acknowledged(server: ClickHouseProcess, table: str, code: int) -> None:
    name = f"refusing_{code}"
    client = connect(server)
    client.command(table.format(name))
    with pytest.raises(DatabaseError) as refused:
        client.insert(name, [[number] for number in range(200)], column_names=["a"])
    assert refused.value.code == code
    assert client.command(f"SELECT count() FROM {name}") == 0
    client.insert(name, [[1], [2]], column_names=["a"])
    assert client.command(f"SELECT count() FROM {name}") == 2


def test_any_bytes_pass_in_any_amount(server: ClickHouseProcess) -> None:
    client = connect(server)
    client.command("CREATE TABLE blobs (s String) ENGINE = MergeTree ORDER BY tuple()")
    sent = [bytes(range(256)) * 8, b"';\n", b" ", b"", *(b"x" * 1000 + b"\0" for _ in range(2000))]
    body = b"".join(_leb128(len(each)) + each for each in sent)
    client.raw_insert("blobs", ["s"], body, fmt="RowBinary")
    client.raw_insert("blobs", ["s"], b"\x01;", fmt="RowBinary")
    total = sum(map(len, sent)) + 1
    assert client.query("SELECT count(), sum(length(s)) FROM blobs").result_rows == [(len(sent) + 1, total)]


def _leb128(number: int) -> bytes:
    return bytes([number]) if number < 128 else bytes([number % 128 | 128]) + _leb128(number // 128)


def test_a_get_cannot_write(server: ClickHouseProcess) -> None:
    reply = httpx.get(server.url, params={"query": "TRUNCATE TABLE rows"})
    assert reply.headers["x-clickhouse-exception-code"] == "164"
    assert httpx.get(server.url, params={"query": "SELECT 1"}).text == "1\n"


@pytest.mark.parametrize("headers", [{"Origin": "http://evil.example"}, {"Host": "evil.example"}])
def test_a_web_page_is_refused(server: ClickHouseProcess, headers: dict[str, str]) -> None:
    assert httpx.post(server.url, content="SELECT 1", headers=headers).status_code == 400


def test_settings_of_one_request_do_not_reach_another(server: ClickHouseProcess) -> None:
    client = connect(server)
    sql = "SELECT getSetting('max_block_size')"
    assert client.query(sql, settings={"max_block_size": 1234}).result_rows == [(1234,)]
    assert client.query(sql).result_rows != [(1234,)]


def test_many_clients_are_served_at_once(server: ClickHouseProcess) -> None:
    client = connect(server)
    with ThreadPoolExecutor(16) as pool:
        found = list(pool.map(lambda i: client.query("SELECT {i:UInt32}", parameters={"i": i}).result_rows, range(100)))
    assert found == [[(i,)] for i in range(100)]


def test_an_acknowledged_insert_survives_kill_9(tmp_path: Path) -> None:
    with running_clickhouse(tmp_path / "data") as server:
        client = connect(server)
        client.command(TABLE)
        for i in range(5):
            client.insert("rows", [[i, "x", NOW, None, "l"]], column_names=["a", "s", "at", "n", "l"])
        server.kill()
    with running_clickhouse(tmp_path / "data") as server:
        assert connect(server).command("SELECT count() FROM rows") == 5


def test_a_clean_stop_answers_zero(tmp_path: Path) -> None:
    with running_clickhouse(tmp_path / "data") as server:
        assert server.stop() == 0


def test_a_port_in_use_is_one_line_and_status_2(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        _assert_refused(spawn_clickhouse(tmp_path / "data", taken.getsockname()[1]), b"address already in use")


def test_a_directory_in_use_is_one_line_and_status_2(tmp_path: Path) -> None:
    with running_clickhouse(tmp_path / "data"):
        _assert_refused(spawn_clickhouse(tmp_path / "data", free_port()), b"another process has the directory")


def _assert_refused(process: "subprocess.Popen[bytes]", reason: bytes) -> None:
    _, log = process.communicate(timeout=60)
    assert process.returncode == 2
    assert reason in log and log.count(b"\n") == 1, log
