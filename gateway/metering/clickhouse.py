"""Connections to ClickHouse over HTTP. `CLICKHOUSE_URL`: http(s)://[user:password@]host:port[/database]."""

import logging
from urllib.parse import urlsplit

import clickhouse_connect
from clickhouse_connect.driver import options
from clickhouse_connect.driver.client import Client

DEFAULT_DATABASE = "tiergate"
CONNECT_TIMEOUT_S = 2
DEADLINE_S = 20
"""Per request. The server aborts a query 2 s earlier."""


def database_of(url: str) -> str:
    return urlsplit(url).path.strip("/") or DEFAULT_DATABASE


def connect(url: str, *, database: str | None = None, deadline_s: int = DEADLINE_S) -> Client:
    """A client that several threads may share. Raises clickhouse_connect's errors when the server is unreachable."""
    # Both libraries also log every failure that they raise, once per retry.
    for name in ("clickhouse_connect", "urllib3.connectionpool"):
        logging.getLogger(name).setLevel(logging.ERROR)
    _leave_data_frames_out()
    parts = urlsplit(url)
    is_secure = parts.scheme == "https"
    return clickhouse_connect.get_client(
        host=parts.hostname or "localhost",
        port=parts.port or (8443 if is_secure else 8123),
        username=parts.username or "default",
        password=parts.password or "",
        database=database or "__default__",
        secure=is_secure,
        connect_timeout=CONNECT_TIMEOUT_S,
        send_receive_timeout=deadline_s,
        query_retries=0,
        # A session allows one query at a time.
        autogenerate_session_id=False,
        settings={"max_execution_time": deadline_s - 2},
        tz_mode="aware",
        # Makes `close` also close the client's connections.
        dedicated_pool=True,
    )


def _leave_data_frames_out() -> None:
    """Keep the driver from importing pandas and pyarrow, which are present wherever chDB is installed.

    The driver would load them only to check that our rows are not of their types, which costs 80 MB and a good part
    of a second. It treats None as `not installed`."""
    for name in ("np", "pd", "pd_time_test", "arrow", "pl"):
        vars(options).setdefault(name, None)
