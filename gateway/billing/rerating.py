"""Rerates past usage with a given price book, a page at a time.

The difference is computed first and written only on request. A written row is the same event with a higher version, so
it replaces the old row like any later copy. What a final invoice has billed for the event stays; the next invoice bills
the difference.
"""

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from gateway.domain.prices.price_book import PriceBook, RequestPrice
from gateway.http.errors import Unavailable
from gateway.metering.cursors import decode_cursor, encode_cursor
from gateway.metering.queries import UsageQueries
from gateway.metering.statements import BoundQuery, where_window
from gateway.metering.store import EVENT_FIELDS, TABLE, InsertRefused, StoreUnavailable, UsageStore
from gateway.metering.windows import Window
from protocol.usage import PriceLine

PAGE = 5000
FIRST_RERATING = 16
"""The version of a row that was rerated once; lower versions are written by gateways."""
LAST_RERATING = 254
_PLACE = "e.tenant_id, toUnixTimestamp(toStartOfHour(e.timestamp)), e.request_id"
"""The table's sorting key, so that reading a page reads no other rows."""
_BILLED = ("ok", "cancelled", "lost")
Row = dict[str, Any]


@dataclass
class Difference:
    """Old and new cost of a page's events; `by_tenant`: (tenant, model) -> new minus old, in nano-dollars."""

    num_events: int = 0
    num_changed: int = 0
    old_nanousd: int = 0
    new_nanousd: int = 0
    by_tenant: Counter[tuple[str, str]] = field(default_factory=Counter)
    next: str | None = None


class Rerating:
    def __init__(self, queries: UsageQueries, clickhouse_url: str | None, *, page: int = PAGE) -> None:
        self._queries = queries
        self._url = clickhouse_url
        self._page = page

    async def rerate(
        self, book: PriceBook, window: Window, *, tenant_id: str | None, after: str | None, is_applied: bool
    ) -> Difference:
        """Rerate one page; the result's `next` is the next page's `after`. Raises Unavailable or InvalidRequest."""
        rows = await self._queries.fetch(_page(window, tenant_id, limit=self._page, after=after))
        found = Difference(num_events=min(len(rows), self._page))
        if len(rows) > self._page:
            rows = rows[: self._page]
            found.next = encode_cursor(rows[-1]["tenant_id"], rows[-1].pop("hour"), rows[-1]["request_id"])
        changed = []
        for row in rows:
            cost_nanousd = row["cost_nanousd"]
            found.old_nanousd += cost_nanousd
            if _price_anew(row, book):
                changed.append(row)
                found.by_tenant[row["tenant_id"], model_of(row["model_version"])] += row["cost_nanousd"] - cost_nanousd
            found.new_nanousd += row["cost_nanousd"]
        found.num_changed = len(changed)
        if is_applied and changed:
            await asyncio.to_thread(self._write, changed)
        return found

    def _write(self, rows: Sequence[Row]) -> None:
        assert self._url is not None, "it was read from there"
        store = UsageStore(self._url)
        try:
            store.insert_rows([[row[name] for name in (*EVENT_FIELDS, "version")] for row in rows])
        except (StoreUnavailable, InsertRefused) as error:
            raise Unavailable(f"the new costs could not be written: {error}", retry_after_s=5) from error
        finally:
            store.close()


def model_of(model_version: str) -> str:
    """A model's id without the version of its files."""
    return model_version.rpartition("@")[0] or model_version


def _page(window: Window, tenant_id: str | None, *, limit: int, after: str | None) -> BoundQuery:
    where, parameters = where_window(window, tenant_id)
    if after is not None:
        tenant, hour_s, request_id = decode_cursor(after, str, int, str)
        where += f" AND ({_PLACE}) > ({{after_tenant:String}}, {{after_hour:UInt32}}, {{after_id:String}})"
        parameters |= {"after_tenant": tenant, "after_hour": hour_s, "after_id": request_id}
    columns = ", ".join(f"e.{name} AS {name}" for name in (*EVENT_FIELDS, "version"))
    sql = f"""SELECT {columns}, toUnixTimestamp(toStartOfHour(e.timestamp)) AS hour FROM {TABLE} AS e FINAL
WHERE {where} ORDER BY {_PLACE} LIMIT {limit + 1}"""
    return BoundQuery(sql, parameters)


def _price_anew(row: Row, book: PriceBook) -> bool:
    """Rerate the row in place by the book; returns whether its cost or its price lines changed."""
    # A request that was reported to the client as failed stays free.
    if row["status"] not in _BILLED:
        return False
    tokens: dict[str, Any] = {
        **{name: row[name] for name in ("prompt_tokens", "cached_prompt_tokens", "completion_tokens")},
        "is_cached_answer": row["cached_answer"],
    }
    price = _price_of(row, book)
    cost_nanousd, lines = price.cost_nanousd(**tokens), [_as_row(line) for line in price.lines(**tokens)]
    told = [tuple(line.values()) if isinstance(line, dict) else tuple(line) for line in row["price_lines"]]
    # Events of the first schema version have no lines.
    if cost_nanousd == row["cost_nanousd"] and (not told or told == lines):
        return False
    row |= {"cost_nanousd": cost_nanousd, "price_lines": lines, "price_version": price.version}
    row["version"] = min(max(row["version"] + 1, FIRST_RERATING), LAST_RERATING)
    return True


def _price_of(row: Row, book: PriceBook) -> RequestPrice:
    return book.price_of(
        model_of(row["model_version"]),
        adapter_id=row["adapter_id"],
        tier=row["tier"],
        is_batch=row["batch_id"] is not None,
        now=row["timestamp"],
    )


def _as_row(line: PriceLine) -> tuple[str, int, int, int]:
    return (line.kind, line.quantity, line.unit_price_nanousd, line.amount_nanousd)
