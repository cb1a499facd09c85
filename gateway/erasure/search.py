"""Searches every store, byte by byte, for words that somebody enters, such as an erased name."""

import asyncio
import logging
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import msgspec
from clickhouse_connect.driver.binding import quote_identifier
from clickhouse_connect.driver.client import Client
from sqlalchemy import JSON, String, Text, cast, func, or_, select

from gateway.domain.tables import Base
from gateway.erasure import file_search
from gateway.erasure.proof import LOOKS
from gateway.erasure.subject import Counts, Stores, Subject, Waits
from gateway.erasure.usage import in_clickhouse
from gateway.redis_client import AWAY

_log = logging.getLogger(__name__)


async def look_again(stores: Stores, subject: Subject) -> tuple[Counts, dict[str, str]]:
    """How much each store still has that names the subject, and which stores could not be searched, with the reason."""
    found: Counts = {}
    away: dict[str, str] = {}
    for store, look in LOOKS.items():
        try:
            found[store] = await look(stores, subject)
        except Waits as reason:
            away[store] = str(reason)
    return found, away


async def search_words(stores: Stores, words: Sequence[str]) -> tuple[Counts, dict[str, str]]:
    """Where any of the words is, with how many rows, keys or files; and which stores could not be searched, and why."""
    found: Counts = {}
    away: dict[str, str] = {}
    searches = {"database": _in_database, "redis": _in_redis, "clickhouse": _in_clickhouse, "files": _in_files}
    for store, search in searches.items():
        try:
            found |= await search(stores, words)
        except Waits as reason:
            away[store] = str(reason)
    return found, away


async def _in_database(stores: Stores, words: Sequence[str]) -> Counts:
    found: Counts = {}
    async with stores.sessions() as session:
        for table in Base.metadata.sorted_tables:
            texts = [cast(column, Text) for column in table.columns if isinstance(column.type, String | JSON)]
            if not texts:
                continue
            holds = or_(*(text.contains(word, autoescape=True) for text in texts for word in words))
            num_rows = await session.scalar(select(func.count()).select_from(table).where(holds))
            found |= {f"database.{table.name}": num_rows} if num_rows else {}
    return found


async def _in_redis(stores: Stores, words: Sequence[str]) -> Counts:
    wanted, num_keys = [word.encode() for word in words], 0
    try:
        async for key in stores.redis.scan_iter(count=1000):
            # The value as Redis would write it to disk, the same way for every type; names are not compressed there.
            content = key + (await stores.redis.dump(key) or b"")
            num_keys += any(word in content for word in wanted)
    except AWAY as error:
        raise Waits("redis", str(error) or type(error).__name__) from error
    return {"redis": num_keys} if num_keys else {}


async def _in_clickhouse(stores: Stores, words: Sequence[str]) -> Counts:
    if stores.clickhouse_url is None:
        return {}
    return await in_clickhouse(stores, lambda client: _search_tables(client, words))


def _search_tables(client: Client, words: Sequence[str]) -> Counts:
    columns: dict[str, list[str]] = {}
    listed = "SELECT table, name FROM system.columns WHERE database = currentDatabase() AND type LIKE '%String%'"
    for table, column in client.query(listed).result_rows:
        columns.setdefault(table, []).append(column)
    parameters: dict[str, Any] = {"words": list(words)}
    found: Counts = {}
    for table, names in columns.items():
        holds = " OR ".join(
            f"multiSearchAny(toString({quote_identifier(name)}), {{words:Array(String)}})" for name in names
        )
        query = f"SELECT count() FROM {quote_identifier(table)} WHERE {holds}"
        num_rows = int(client.query(query, parameters=parameters).result_rows[0][0])
        found |= {f"clickhouse.{table}": num_rows} if num_rows else {}
    return found


async def _in_files(stores: Stores, words: Sequence[str]) -> Counts:
    """All files in the data directory except ClickHouse's own, which drop old rows as they merge."""
    asked = {"root": str(stores.data_dir), "words": list(words), "skipped": "clickhouse"}
    command = [sys.executable, "-P", file_search.__file__]
    done = await asyncio.to_thread(subprocess.run, command, input=msgspec.json.encode(asked), capture_output=True)
    if done.returncode:
        _log.error("the search of files failed: %s", done.stderr.decode(errors="replace"))
        raise Waits("files", f"their search ended with status {done.returncode}")
    return {f"files.{place}": 1 for place in msgspec.json.decode(done.stdout, type=list[str])}
