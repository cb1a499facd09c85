"""Parses HTTP requests to ClickHouse into statements. Pure, so that it can be tested without the engine."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

# Parameters of the HTTP transport. Every other parameter that is not `param_*` is a setting of the query.
_TRANSPORT = {
    *("query", "database", "user", "password", "role", "quota_key", "default_format", "query_id"),
    *("session_id", "session_timeout", "session_check", "wait_end_of_query", "buffer_size", "client_protocol_version"),
    *("compress", "decompress", "enable_http_compression", "http_zlib_compression_level", "add_http_cors_header"),
    *("send_progress_in_http_headers", "http_headers_progress_interval_ms"),
    "cancel_http_readonly_queries_on_client_close",
}
_SETTING_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_COMMENTS = re.compile(rb"\A(?:\s+|--[^\n]*(?:\n|\Z)|/\*.*?\*/)+", re.DOTALL)
# INSERT INTO t (a, b) FORMAT Native <newline or space> data
_INSERT_DATA = re.compile(
    rb"""\A(?P<insert>INSERT\s+INTO\s+(?:TABLE\s+)?(?:`[^`]*`|"[^"]*"|[\w.])+\s*(?:\([^()]*\))?)"""
    rb"""\s+FORMAT\s+(?P<format>\w+)(?:[ \t]*\r?\n|[ \t]|\Z)""",
    re.IGNORECASE,
)
_READS = re.compile(rb"\A\(*\s*(?:SELECT|WITH|SHOW|DESCRIBE|DESC|EXPLAIN|EXISTS)\b", re.IGNORECASE)
_FORMAT = re.compile(rb"\bFORMAT\s+(\w+)\s*;?\s*\Z", re.IGNORECASE)


class BadRequest(Exception):
    """Sent as a ClickHouse exception with code 36 (BAD_ARGUMENTS)."""


@dataclass(frozen=True)
class Statement:
    """`data` is None unless the statement inserts bytes that came with it, in the format `format`."""

    sql: str
    format: str
    is_read: bool
    database: str | None = None
    data: bytes | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    parameters: Mapping[str, str] = field(default_factory=dict)
    """Values of `{name:Type}`, in ClickHouse's escaped form, as in the URL."""


def parse_statement(url_params: Mapping[str, str], body: bytes, *, default_format: str = "TabSeparated") -> Statement:
    """Raises BadRequest."""
    if url_params.get("compress") == "1" or url_params.get("decompress") == "1":
        raise BadRequest("compress=1 and decompress=1 are not supported; use Content-Encoding")
    text = _COMMENTS.sub(b"", _join(url_params.get("query", ""), body))
    if not text:
        raise BadRequest("the query is empty")
    parameters = {name[6:]: value for name, value in url_params.items() if name.startswith("param_")}
    database, settings = url_params.get("database"), _settings(url_params)
    insert = _INSERT_DATA.match(text)
    if insert is not None:
        return Statement(
            sql=_decode(insert["insert"]),
            format=_decode(insert["format"]),
            is_read=False,
            database=database,
            data=text[insert.end() :],
            settings=settings,
            parameters=parameters,
        )
    named = _FORMAT.search(text)
    return Statement(
        sql=_decode(text),
        format=_decode(named[1]) if named else url_params.get("default_format", default_format),
        is_read=_READS.match(text) is not None,
        database=database,
        settings=settings,
        parameters=parameters,
    )


def quote_string(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def quote_name(name: str) -> str:
    escaped = name.replace("\\", "\\\\").replace("`", "\\`")
    return f"`{escaped}`"


def _join(query: str, body: bytes) -> bytes:
    """The statement is in the URL, in the body, or begins in the URL and continues in the body."""
    if query and body:
        return query.encode() + b"\n" + body
    return query.encode() or body


def _settings(url_params: Mapping[str, str]) -> dict[str, str]:
    settings = {name: value for name, value in url_params.items() if _is_setting(name)}
    for name in settings:
        if not _SETTING_NAME.fullmatch(name):
            raise BadRequest(f"{name!r} is not the name of a setting")
    return settings


def _is_setting(name: str) -> bool:
    return name not in _TRANSPORT and not name.startswith("param_")


def _decode(sql: bytes) -> str:
    try:
        return sql.decode()
    except UnicodeDecodeError as error:
        raise BadRequest(f"the query is not UTF-8: {error}") from error
