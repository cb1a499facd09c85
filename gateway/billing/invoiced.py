"""Calculates what an invoice bills, from ClickHouse's deduplicated raw rows.

One rule: an invoice bills the current cost of each event, less what final invoices have already billed for it. Events
in the invoice's period become usage lines; earlier events that arrived late or were rerated become adjustments.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NamedTuple
from uuid import UUID
from zoneinfo import ZoneInfo

from clickhouse_connect.driver.client import Client
from clickhouse_connect.driver.exceptions import ClickHouseError

from gateway.http.errors import Conflict, Unavailable
from gateway.metering.clickhouse import connect, database_of
from gateway.metering.statements import micros
from gateway.metering.store import TABLE
from gateway.metering.windows import Window

INVOICED = "invoiced_events"
LOOK_BACK = timedelta(days=400)
"""Maximum age of an event at the start of the period to become an adjustment."""
UNITEMISED = "tokens"
"""The line kind of events of the first schema version, which carried only their cost."""
DEADLINE_S = 120
_SETTINGS = {"do_not_merge_across_partitions_select_final": 1, "max_execution_time": DEADLINE_S - 2}
_VARYING = "('minimum', 'discount', 'cached_answer')"
_KEY = "is_adjustment, month, model_id, adapter_id, kind, unit_price_nanousd"
# The current lines of each event; `arrayJoin` yields one row per line.
_EVENTS = f"""SELECT timestamp, request_id, model_version, adapter_id, status,
    arrayJoin(if(empty(price_lines) AND cost_nanousd != 0,
        [('{UNITEMISED}', toInt64(prompt_tokens + completion_tokens), toInt64(0), cost_nanousd)],
        arrayMap(l -> (toString(l.1), l.2, l.3, l.4), price_lines))) AS line
    FROM {TABLE} FINAL
    WHERE tenant_id = {{tenant:String}} AND timestamp >= fromUnixTimestamp64Micro({{start:Int64}})
        AND timestamp < fromUnixTimestamp64Micro({{end:Int64}})"""
_NOW = f"""SELECT timestamp, request_id,
    if(position(model_version, '@') = 0, model_version,
        arrayStringConcat(arrayPopBack(splitByChar('@', model_version)), '@')) AS model_id,
    ifNull(adapter_id, '') AS adapter_id, line.1 AS kind, if(line.1 IN {_VARYING}, 0, line.3) AS unit_price_nanousd,
    line.2 AS quantity, line.4 AS amount_nanousd
    FROM ({_EVENTS})"""
_BILLED = f"""SELECT timestamp, request_id, model_id, adapter_id, kind, unit_price_nanousd, quantity, amount_nanousd
    FROM {INVOICED}
    WHERE tenant_id = {{tenant:String}} AND calculation_id IN {{billed:Array(UUID)}}
        AND timestamp >= fromUnixTimestamp64Micro({{start:Int64}})
        AND timestamp < fromUnixTimestamp64Micro({{end:Int64}})"""
_INSERT = f"INSERT INTO {INVOICED} (tenant_id, calculation_id, {_KEY}, timestamp, request_id, quantity, amount_nanousd)"
_MONTH = "toYYYYMM(toTimeZone(timestamp, {zone:String}))"


class LineSum(NamedTuple):
    is_adjustment: bool
    month: int
    """YYYYMM"""
    model_id: str
    adapter_id: str
    kind: str
    unit_price_nanousd: int
    num_requests: int
    quantity: int
    amount_nanousd: int


@dataclass(frozen=True)
class BilledBefore:
    """A final invoice's calculation and its subtotal."""

    calculation_id: UUID
    subtotal_nanousd: int


def calculate(
    url: str,
    *,
    tenant_id: UUID,
    period: Window,
    zone: ZoneInfo,
    calculation_id: UUID,
    billed: Sequence[BilledBefore],
) -> list[LineSum]:
    """Write the billed events under `calculation_id` and return their sums by line. Blocks; call it from a thread.

    Raises Unavailable, or Conflict if ClickHouse has lost the record of what a final invoice billed.
    """
    with _connected(url) as client:
        shared = {"tenant": str(tenant_id), "calculation": str(calculation_id), "zone": zone.key}
        ids = [str(each.calculation_id) for each in billed]
        _check_record(client, str(tenant_id), billed)
        _bill_period(client, shared, period)
        earlier = Window(period.start - LOOK_BACK, period.start)
        for month in _changed_months(client, shared | {"billed": ids}, earlier):
            _bill_difference(client, shared | {"billed": ids}, earlier, month)
        return _sums(client, shared)


def requests_of(
    url: str, *, tenant_id: UUID, calculation_id: UUID, line: LineSum, limit: int, after: tuple[int, str] | None
) -> list[Mapping[str, Any]]:
    """The requests that a line sums up, in time order, with the quantity and amount billed for each.

    after: timestamp in microseconds and id of the last request of the previous page.
    """
    with _connected(url) as client:
        parameters: dict[str, Any] = {
            "tenant": str(tenant_id),
            "calculation": str(calculation_id),
            "is_adjustment": int(line.is_adjustment),
            "month": line.month,
            "model": line.model_id,
            "adapter": line.adapter_id,
            "kind": line.kind,
            "unit": line.unit_price_nanousd,
            "after_us": after[0] if after else -(2**62),
            "after_id": after[1] if after else "",
            "limit": limit,
        }
        sql = f"""SELECT request_id, timestamp, quantity, amount_nanousd FROM {INVOICED}
WHERE tenant_id = {{tenant:String}} AND calculation_id = {{calculation:UUID}}
    AND is_adjustment = {{is_adjustment:UInt8}} AND month = {{month:UInt32}} AND model_id = {{model:String}}
    AND adapter_id = {{adapter:String}} AND kind = {{kind:String}} AND unit_price_nanousd = {{unit:Int64}}
    AND (toUnixTimestamp64Micro(timestamp), request_id) > ({{after_us:Int64}}, {{after_id:String}})
ORDER BY timestamp, request_id LIMIT {{limit:UInt32}}"""
        return list(client.query(sql, parameters=parameters, settings=_SETTINGS).named_results())


def _check_record(client: Client, tenant: str, billed: Sequence[BilledBefore]) -> None:
    """Raises Conflict if the record of billed events is incomplete: they would be billed again."""
    sql = f"""SELECT toString(calculation_id), sum(amount_nanousd) FROM {INVOICED}
WHERE tenant_id = {{tenant:String}} AND calculation_id IN {{billed:Array(UUID)}} GROUP BY calculation_id"""
    ids = [str(each.calculation_id) for each in billed]
    rows = client.query(sql, parameters={"tenant": tenant, "billed": ids}, settings=_SETTINGS).result_rows
    found = {key: int(amount) for key, amount in rows}
    for each in billed:
        amount = found.get(str(each.calculation_id), 0)
        if amount != each.subtotal_nanousd:
            raise Conflict(
                f"ClickHouse holds {amount} of the {each.subtotal_nanousd} nano-dollars that the calculation "
                f"{each.calculation_id} of a final invoice came to; restore the table {INVOICED} before billing on"
            )


def _bill_period(client: Client, shared: Mapping[str, Any], period: Window) -> None:
    sql = f"""{_INSERT} SELECT {{tenant:String}}, toUUID({{calculation:String}}), false, {_MONTH},
model_id, adapter_id, kind, unit_price_nanousd, timestamp, request_id, quantity, amount_nanousd FROM ({_NOW})"""
    client.command(sql, parameters={**shared, **_bounds(period)}, settings=_SETTINGS)


def _changed_months(client: Client, parameters: Mapping[str, Any], earlier: Window) -> Iterator[int]:
    """Months whose events now cost more or less than was billed for them."""
    bounds = _bounds(earlier)
    sums = []
    for rows in (_NOW, _BILLED):
        sql = f"""SELECT {_MONTH} AS m, model_id, adapter_id, kind, unit_price_nanousd,
    sum(quantity), sum(amount_nanousd) FROM ({rows}) GROUP BY m, model_id, adapter_id, kind, unit_price_nanousd"""
        found = client.query(sql, parameters={**parameters, **bounds}, settings=_SETTINGS).result_rows
        sums.append({tuple(row[:5]): tuple(row[5:]) for row in found if any(row[5:])})
    now, billed = sums
    return iter(sorted({key[0] for key in now.keys() | billed.keys() if now.get(key) != billed.get(key)}))


def _bill_difference(client: Client, parameters: Mapping[str, Any], earlier: Window, month: int) -> None:
    """Bill the month's difference for events that still exist; expired events stay as they were billed."""
    in_month = f"{_MONTH} = {{m:UInt32}}"
    sql = f"""{_INSERT} SELECT {{tenant:String}}, toUUID({{calculation:String}}), true, {{m:UInt32}},
model_id, adapter_id, kind, unit_price_nanousd, any(timestamp), request_id, sum(quantity) AS q, sum(amount_nanousd) AS a
FROM (
    SELECT * FROM ({_NOW}) WHERE {in_month}
    UNION ALL
    SELECT timestamp, request_id, model_id, adapter_id, kind, unit_price_nanousd, -quantity, -amount_nanousd
    FROM ({_BILLED}) WHERE {in_month} AND request_id IN (
        SELECT request_id FROM {TABLE} WHERE tenant_id = {{tenant:String}}
            AND timestamp >= fromUnixTimestamp64Micro({{start:Int64}})
            AND timestamp < fromUnixTimestamp64Micro({{end:Int64}}) AND {in_month})
) GROUP BY request_id, model_id, adapter_id, kind, unit_price_nanousd HAVING q != 0 OR a != 0"""
    client.command(sql, parameters={**parameters, **_bounds(earlier), "m": month}, settings=_SETTINGS)


def _sums(client: Client, shared: Mapping[str, Any]) -> list[LineSum]:
    sql = f"""SELECT {_KEY}, count(), sum(quantity), sum(amount_nanousd) FROM {INVOICED}
WHERE tenant_id = {{tenant:String}} AND calculation_id = {{calculation:UUID}} GROUP BY {_KEY} ORDER BY {_KEY}"""
    rows = client.query(sql, parameters=dict(shared), settings=_SETTINGS).result_rows
    return [LineSum(bool(row[0]), *row[1:]) for row in rows]


def _bounds(window: Window) -> dict[str, int]:
    return {"start": micros(window.start), "end": micros(window.end)}


@contextmanager
def _connected(url: str) -> Iterator[Client]:
    try:
        client = connect(url, database=database_of(url), deadline_s=DEADLINE_S)
        try:
            yield client
        finally:
            client.close()
    except (ClickHouseError, OSError) as error:
        raise Unavailable("usage cannot be read at the moment; it is not lost", retry_after_s=5) from error


def month_text(month: int) -> str:
    return f"{month // 100:04}-{month % 100:02}"
