"""The embedded engine's SQL neither reads files nor reaches out, and who does not know the password does nothing."""

import base64
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.support.cli import refusal
from tests.support.clickhouse import PASSWORD, ClickHouseProcess, running_clickhouse

SECRET = "the-secret-of-a-file"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClickHouseProcess]:
    data_dir = tmp_path_factory.mktemp("clickhouse")
    # What an operator, or an earlier version, may have left where the engine looks for scripts.
    (data_dir / "user_scripts").mkdir()
    script = data_dir / "user_scripts" / "s.sh"
    script.write_text(f"#!/bin/sh\necho {SECRET}\n")
    script.chmod(0o700)
    with running_clickhouse(data_dir) as running:
        for sql in (
            "CREATE TABLE m (a UInt64, s String) ENGINE = MergeTree ORDER BY a",
            "INSERT INTO m VALUES (1, 'x')",
        ):
            query(running, sql).raise_for_status()
        yield running


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What no statement may read from, or write to."""
    made = tmp_path_factory.mktemp("outside")
    (made / "secret.csv").write_text(SECRET + "\n")
    return made


@pytest.fixture(scope="module")
def trap() -> Iterator[socket.socket]:
    """A server that nobody may call."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        listener.settimeout(0)
        yield listener


def query(server: ClickHouseProcess, sql: str, **params: str) -> httpx.Response:
    return httpx.post(server.url, content=sql.encode(), params=params, timeout=60)


READS = [
    "SELECT * FROM file('{path}')",
    "SELECT * FROM FILE('{path}', CSV, 's String')",
    "select/**/*/* -- */from -- x\n file/**/('{path}', LineAsString)",
    "SELECT * FROM `file`('{path}')",
    r"SELECT * FROM `\x66ile`('{path}', LineAsString)",
    "SELECT * FROM `{path}`",
    "SELECT * FROM '{path}'",
    "SELECT file('{path}')",
    "SELECT \"file\"('{path}')",
    r"SELECT `\x66ile`('{path}')",
    "SELECT arrayMap(file, ['{path}'])",
    "SELECT arrayMap(x -> file(x), ['{path}'])",
    "SELECT * APPLY file FROM (SELECT '{path}')",
    "SELECT * REPLACE(file(s) AS s) FROM (SELECT '{path}' AS s)",
    "WITH x AS (SELECT * FROM (SELECT * FROM file('{path}'))) SELECT * FROM x",
    "SELECT (SELECT * FROM file('{path}', LineAsString) LIMIT 1)",
    "SELECT 1 WHERE 'x' IN (SELECT c1 FROM file('{path}'))",
    "SELECT * FROM view(SELECT * FROM file('{path}'))",
    "SELECT * FROM m AS a JOIN (SELECT file('{path}') AS s) AS b ON 1 = 1",
    "SELECT 1 UNION ALL SELECT length(file('{path}'))",
    "SELECT * FROM fileCluster('default', '{path}')",
    "SELECT * FROM iceberglocal('{folder}')",
    "SELECT * FROM filesystem('{folder}')",
    "SELECT * FROM executable('s.sh', TSV, 's String')",
    "SELECT * FROM Python(statement)",
    "SELECT * FROM python(statement)",
    "SELECT * FROM sqlite('{path}', 't')",
    "SELECT * FROM eval('SELECT * FROM file(\\'{path}\\')')",
    "SELECT * FROM loop(file('{path}'))",
    "DESCRIBE file('{path}')",
    "EXPLAIN PLAN SELECT * FROM file('{path}')",
    "INSERT INTO m SELECT 2, c1 FROM file('{path}')",
    "INSERT INTO m FROM INFILE '{path}' FORMAT CSV",
    "INSERT INTO m VALUES (2, file('{path}'))",
    "INSERT INTO m SELECT 2, file('{path}')",
    "CREATE TABLE f (s String) ENGINE = File(CSV, '{path}')",
    r"CREATE TABLE f (s String) ENGINE = `\x46ile`(CSV, '{path}')",
    "CREATE TABLE f AS file('{path}')",
    "CREATE TABLE f (a UInt8, s String DEFAULT file('{path}')) ENGINE = Memory",
    "CREATE TABLE f (s String) ENGINE = Executable('s.sh', TSV)",
    "CREATE TABLE f (s String) ENGINE = EmbeddedRocksDB(0, '{folder}') PRIMARY KEY s",
    "CREATE VIEW f AS SELECT * FROM file('{path}')",
    "CREATE MATERIALIZED VIEW f ENGINE = Memory POPULATE AS SELECT file('{path}') AS s",
    "CREATE DICTIONARY f (a UInt64, s String) PRIMARY KEY a SOURCE(FILE(PATH '{path}' FORMAT 'CSV')) "
    "LAYOUT(FLAT()) LIFETIME(1)",
    "CREATE DATABASE f ENGINE = Filesystem('{folder}')",
    "ALTER TABLE m ADD COLUMN f String DEFAULT file('{path}')",
    "ALTER TABLE m UPDATE s = file('{path}') WHERE 1",
    "ATTACH TABLE f FROM '{folder}' (a UInt64) ENGINE = MergeTree ORDER BY a",
    "RESTORE TABLE m FROM File('{folder}')",
    "SELECT 1 FORMAT CapnProto SETTINGS format_schema = '{path}:x'",
    "SELECT 1 FORMAT Template SETTINGS format_template_row = '{path}'",
    "SELECT * FROM m SETTINGS additional_table_filters = {{'m': 'throwIf(1, file(''{path}''))'}}",
    "SELECT * FROM m SETTINGS additional_result_filter = 'file(''{path}'') = s'",
    "SELECT 1; SELECT file('{path}')",
    "SELECT 1; SELECT * FROM file('{path}')",
    "SELECT 1 PARALLEL WITH SELECT file('{path}')",
    "SET dialect = 'kusto'",
    "SELECT 1 SETTINGS dialect = 'kusto'",
]
WRITES = [
    "SELECT 1 INTO OUTFILE '{folder}/out' FORMAT CSV",
    "SELECT 1 into/**/outfile '{folder}/out'",
    "SHOW TABLES INTO OUTFILE '{folder}/out'",
    "EXPLAIN SELECT 1 INTO OUTFILE '{folder}/out'",
    "INSERT INTO FUNCTION file('{folder}/out', CSV, 'a UInt8') VALUES (1)",
    "INSERT INTO TABLE FUNCTION file('{folder}/out', CSV, 'a UInt8') SELECT 1",
    "INSERT INTO `{folder}/out.csv` VALUES (1)",
    "BACKUP TABLE m TO File('{folder}/out')",
    "CREATE TABLE f (a UInt64) ENGINE = MergeTree ORDER BY a SETTINGS disk = disk(type = local, path = '{folder}/')",
    "ALTER TABLE m MODIFY SETTING disk = disk(type = local, path = '{folder}/')",
    "CREATE MATERIALIZED VIEW f ENGINE = File(CSV, '{folder}/out') AS SELECT * FROM m",
    "INSERT INTO m SETTINGS input_format_record_errors_file_path = '{folder}/out' VALUES (1, 'x')",
]
REACHES = [
    "SELECT * FROM url('http://127.0.0.1:{port}/x', CSV, 's String')",
    "SELECT * FROM s3('http://127.0.0.1:{port}/bucket/x', CSV, 's String')",
    "SELECT * FROM gcs('http://127.0.0.1:{port}/bucket/x', CSV, 's String')",
    "SELECT * FROM remote('127.0.0.1:{port}', 'system', 'one')",
    "SELECT * FROM mysql('127.0.0.1:{port}', 'a', 'b', 'c', 'd')",
    "SELECT * FROM postgresql('127.0.0.1:{port}', 'a', 'b', 'c', 'd')",
    "SELECT * FROM mongodb('127.0.0.1:{port}', 'a', 'b', 'c', 'd', 's String')",
    "SELECT * FROM redis('127.0.0.1:{port}', 's', 's String')",
    "SELECT * FROM hdfs('hdfs://127.0.0.1:{port}/x', CSV, 's String')",
    "CREATE TABLE f (s String) ENGINE = URL('http://127.0.0.1:{port}/x', CSV)",
    "CREATE TABLE f (s String) ENGINE = S3('http://127.0.0.1:{port}/bucket/x', CSV)",
    "CREATE TABLE f (s String) ENGINE = Kafka('127.0.0.1:{port}', 'a', 'b', 'CSV')",
    "CREATE TABLE f (s String) ENGINE = MySQL('127.0.0.1:{port}', 'a', 'b', 'c', 'd')",
    "CREATE DATABASE f ENGINE = MySQL('127.0.0.1:{port}', 'a', 'b', 'c')",
    "CREATE DATABASE f ENGINE = PostgreSQL('127.0.0.1:{port}', 'a', 'b', 'c')",
    "CREATE DICTIONARY f (a UInt64) PRIMARY KEY a SOURCE(HTTP(URL 'http://127.0.0.1:{port}/' FORMAT 'CSV')) "
    "LAYOUT(FLAT()) LIFETIME(1)",
    "CREATE TABLE f (a UInt64) ENGINE = MergeTree ORDER BY a "
    "SETTINGS disk = disk(type = web, endpoint = 'http://127.0.0.1:{port}/x/')",
    "ALTER TABLE m MODIFY SETTING disk = disk(type = web, endpoint = 'http://127.0.0.1:{port}/x/')",
    "SELECT 1 FORMAT AvroConfluent SETTINGS format_avro_schema_registry_url = 'http://127.0.0.1:{port}/'",
    "SELECT aiGenerate('x')",
    "BACKUP TABLE m TO S3('http://127.0.0.1:{port}/bucket/x')",
]
COMMANDS = [
    "CREATE USER u",
    "CREATE FUNCTION f AS x -> x",
    "CREATE NAMED COLLECTION f AS a = 1",
    "GRANT ALL ON *.* TO default",
    "SYSTEM SHUTDOWN",
    "SYSTEM RELOAD CONFIG",
    "KILL QUERY WHERE 1",
]


@pytest.mark.parametrize("attempt", [*READS, *WRITES, *REACHES, *COMMANDS])
def test_no_statement_leaves_the_engine(
    server: ClickHouseProcess, folder: Path, trap: socket.socket, attempt: str
) -> None:
    path, port = folder / "secret.csv", trap.getsockname()[1]
    reply = query(server, attempt.format(path=path, folder=folder, port=port))
    assert reply.status_code >= 400, reply.text
    assert SECRET not in reply.text
    assert [each.name for each in folder.iterdir()] == ["secret.csv"]
    with pytest.raises(BlockingIOError):
        trap.accept()
    assert query(server, "SELECT count() FROM m WHERE s != 'x'").text == "0\n"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("dialect", "kusto"),
        ("format_schema", "/etc/passwd:x"),
        ("additional_result_filter", "file('/etc/passwd') != ''"),
        ("input_format_values_interpret_expressions", "1"),
        ("url_base", "http://127.0.0.1/"),
    ],
)
def test_a_setting_of_the_request_opens_nothing(server: ClickHouseProcess, name: str, value: str) -> None:
    assert query(server, "SELECT 1", **{name: value}).status_code >= 400


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT 'file(1) INTO OUTFILE', 1 AS `url(`",
        "SELECT sum(number) FROM numbers(3)",
        "SELECT * FROM values('a UInt8', 1, 2)",
        "WITH x AS (SELECT a FROM m) SELECT * FROM x SETTINGS max_threads = 1, log_comment = 'x'",
        "SHOW CREATE TABLE m",
        "DESCRIBE m",
        "SELECT name FROM system.tables WHERE database = 'tiergate'",
        "CREATE TABLE IF NOT EXISTS w (a UInt64, b String COMMENT 'of a file') ENGINE = ReplacingMergeTree ORDER BY a",
        "CREATE OR REPLACE VIEW v AS SELECT a, s FROM m",
        "ALTER TABLE m ADD COLUMN IF NOT EXISTS c UInt8",
        "INSERT INTO w VALUES (1, 'it''s'), (2, 'a\\nb')",
        "OPTIMIZE TABLE m FINAL",
        "EXPLAIN SELECT 1;",
    ],
)
def test_what_the_platform_does_with_its_tables_works(server: ClickHouseProcess, sql: str) -> None:
    reply = query(server, sql)
    assert reply.status_code == 200, reply.text


def test_a_query_needs_the_password(server: ClickHouseProcess) -> None:
    bare = f"http://127.0.0.1:{server.port}"
    encoded = base64.b64encode(f"tiergate:{PASSWORD}".encode()).decode()
    right: list[dict[str, dict[str, str]]] = [
        {"headers": {"X-ClickHouse-User": "tiergate", "X-ClickHouse-Key": PASSWORD}},
        {"headers": {"Authorization": f"Basic {encoded}"}},
        {"params": {"user": "tiergate", "password": PASSWORD}},
    ]
    wrong: list[dict[str, dict[str, str]]] = [
        {},
        {"params": {"user": "tiergate", "password": "x"}},
        {"params": {"user": "default", "password": PASSWORD}},
        {"headers": {"Authorization": "Basic !"}},
        {"headers": {"Authorization": f"Bearer {PASSWORD}"}},
        {"headers": {"X-ClickHouse-User": "default"}, "params": {"user": "tiergate", "password": PASSWORD}},
    ]
    for sent in right:
        assert httpx.post(bare, content="SELECT 1", **sent).text == "1\n"  # type: ignore[arg-type]
    for sent in wrong:
        reply = httpx.post(bare, content="SELECT 1", **sent)  # type: ignore[arg-type]
        assert (reply.status_code, reply.headers["x-clickhouse-exception-code"]) == (401, "516")
        assert PASSWORD not in reply.text
    assert httpx.get(f"{bare}/ping").text == "Ok.\n"


def test_without_a_password_it_does_not_start(tmp_path: Path) -> None:
    assert "TIERGATE_CLICKHOUSE_PASSWORD" in refusal("clickhouse", "--data-dir", str(tmp_path / "data"))


def test_a_configuration_in_the_working_directory_opens_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """chDB looks there for its own."""
    (tmp_path / "config.xml").write_text("<clickhouse><users_config>users.xml</users_config></clickhouse>")
    (tmp_path / "users.xml").write_text(
        "<clickhouse><users><default><password></password><networks><ip>::/0</ip></networks>"
        "<profile>default</profile><quota>default</quota></default></users>"
        "<profiles><default></default></profiles><quotas><default></default></quotas></clickhouse>"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    with running_clickhouse(tmp_path / "with a space" / "data") as server:
        for sql in ("SELECT file('/etc/hostname')", "SELECT * FROM url('http://127.0.0.1:9/', CSV, 's String')"):
            assert query(server, sql).status_code == 403
        assert stat.S_IMODE((tmp_path / "with a space" / "data").stat().st_mode) == 0o700
