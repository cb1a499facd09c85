import pytest

from tiergate.embedded.statements import BadRequest, parse_statement, quote_name, quote_string


def test_an_insert_keeps_its_bytes_apart_from_its_sql() -> None:
    body = b"INSERT INTO `db`.usage (`a`, `b`) FORMAT Native\n\x01\xff\x00FORMAT TSV"
    statement = parse_statement({"database": "tiergate"}, body)
    assert statement.sql == "INSERT INTO `db`.usage (`a`, `b`)"
    assert (statement.format, statement.data) == ("Native", b"\x01\xff\x00FORMAT TSV")
    assert not statement.is_read


def test_an_insert_named_in_the_url_takes_the_body_as_its_data() -> None:
    statement = parse_statement({"query": "INSERT INTO t FORMAT CSV"}, b"1,2\n")
    assert (statement.sql, statement.format, statement.data) == ("INSERT INTO t", "CSV", b"1,2\n")


@pytest.mark.parametrize("sql", ["INSERT INTO t VALUES (1, 'a FORMAT Native b')", "INSERT INTO t SELECT 1 FORMAT Null"])
def test_an_insert_that_brings_its_own_rows_is_run_as_it_stands(sql: str) -> None:
    statement = parse_statement({}, sql.encode())
    assert (statement.sql, statement.data, statement.is_read) == (sql, None, False)


@pytest.mark.parametrize(
    "sql", ["select 1", "-- why\n  SELECT 1", "/* why */ WITH 1 AS x SELECT x", "(SELECT 1)", "SHOW TABLES"]
)
def test_reads_are_told_from_writes(sql: str) -> None:
    assert parse_statement({}, sql.encode()).is_read
    assert not parse_statement({}, b"CREATE TABLE t (a Int8) ENGINE = Memory").is_read


def test_the_format_is_the_statements_else_the_urls() -> None:
    assert parse_statement({}, b"SELECT 1\n FORMAT Native").format == "Native"
    assert parse_statement({"default_format": "JSON"}, b"SELECT 1").format == "JSON"
    assert parse_statement({}, b"SELECT 1").format == "TabSeparated"


def test_parameters_settings_and_transport_are_told_apart() -> None:
    params = {"query": "SELECT {x:String}", "param_x": "a\\tb", "max_threads": "1", "session_id": "s", "query_id": "q"}
    statement = parse_statement(params, b"")
    assert statement.parameters == {"x": "a\\tb"}
    assert statement.settings == {"max_threads": "1"}


@pytest.mark.parametrize(
    ("params", "body"),
    [
        ({}, b""),
        ({}, b"-- nothing"),
        ({"x = 1; DROP": "1"}, b"SELECT 1"),
        ({"compress": "1"}, b"SELECT 1"),
        ({}, b"SEL\xff"),
    ],
)
def test_what_cannot_be_run_is_refused(params: dict[str, str], body: bytes) -> None:
    with pytest.raises(BadRequest):
        parse_statement(params, body)


def test_quoting_leaves_no_way_out() -> None:
    assert quote_string("a'b\\") == r"'a\'b\\'"
    assert quote_name("a`b\\") == r"`a\`b\\`"
