"""Compares ClickHouse's rows, and the invoices made from them, with the usage reported to the clients."""

import asyncio
from collections import Counter
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

from benchmarks.exactly_once.clients import Told
from benchmarks.exactly_once.site import COMPLETION_NANOUSD, PROMPT_NANOUSD, Site
from gateway.billing.invoicing import Invoicing
from gateway.clock import utc_now
from gateway.database import open_sessions
from gateway.domain.invoices.service import finalize, get_invoice
from gateway.domain.principal import Principal
from gateway.metering.schema import connect_migrated
from tests.support.kafka_clients import topic_size

_SELECT = """SELECT request_id, tenant_id, status, prompt_tokens, completion_tokens, cost_nanousd
FROM usage_events FINAL"""
_SHOWN = 5
_OPERATOR = Principal(uuid4(), "operator", uuid4(), "enterprise", frozenset({"platform-admin"}))
_LONGER_THAN_A_RUN = timedelta(days=1)


async def prove(site: Site, finished: Mapping[str, Told]) -> dict[str, Any]:
    rows, num_copies = await asyncio.to_thread(_rows, site)
    counts = Counter(row[0] for row in rows)
    by_id = {row[0]: row for row in rows}
    differences = [f"{request_id}: {count} rows" for request_id, count in counts.items() if count > 1]
    for request_id, told in finished.items():
        wanted = (request_id, told.tenant_id, "ok", told.prompt_tokens, told.completion_tokens, cost_of(told))
        if tuple(by_id.get(request_id, ())) != wanted:
            differences.append(f"{request_id}: told {wanted}, row {by_id.get(request_id)}")
    num_dead = await asyncio.to_thread(topic_size, site.kafka_server, "tiergate.usage.dead-letters")
    if num_dead:
        differences.append(f"{num_dead} dead letters")
    invoiced = await _invoice(site, now=utc_now())
    differences += _compare_invoices(invoiced, rows, finished)
    return {
        "rows": len(rows),
        "rows_with_copies": num_copies,
        "topic_records": await asyncio.to_thread(topic_size, site.kafka_server, "tiergate.usage"),
        "rows_of_unfinished": dict(Counter(row[2] for row in rows if row[0] not in finished)),
        "tokens": sum(told.prompt_tokens + told.completion_tokens for told in finished.values()),
        "tokens_in_rows": sum(row[3] + row[4] for row in rows if row[0] in finished),
        "cost_nanousd": sum(cost_of(told) for told in finished.values()),
        "invoiced_nanousd": sum(invoiced.values()),
        "invoiced_of_unfinished_nanousd": sum(row[5] for row in rows if row[0] not in finished),
        "differences": len(differences),
        "shown": differences[:_SHOWN],
    }


def cost_of(told: Told) -> int:
    return told.prompt_tokens * PROMPT_NANOUSD + told.completion_tokens * COMPLETION_NANOUSD


def _rows(site: Site) -> tuple[list[Any], int]:
    """The deduplicated rows, and the number of rows with their duplicates."""
    with connect_migrated(site.clickhouse_url) as client:
        rows = list(client.query(_SELECT).result_rows)
        return rows, client.query("SELECT count() FROM usage_events").result_rows[0][0]


async def _invoice(site: Site, *, now: datetime) -> dict[str, int]:
    """Tenant id -> the subtotal of its final invoice for the whole run."""
    sums = {}
    async with open_sessions(site.database_url) as sessions:
        invoicing = Invoicing(sessions, site.clickhouse_url)
        for tenant_id in site.keys:
            start = now - _LONGER_THAN_A_RUN
            draft = await invoicing.draft_until(_OPERATOR, UUID(tenant_id), start, None, now=now)
            await finalize(sessions, _OPERATOR, draft.id, now=now)
            invoice = await get_invoice(sessions, _OPERATOR, draft.id)
            assert invoice.subtotal_nanousd == sum(line.amount_nanousd for line in invoice.lines)
            sums[tenant_id] = invoice.subtotal_nanousd
    return sums


def _compare_invoices(invoiced: Mapping[str, int], rows: list[Any], finished: Mapping[str, Told]) -> list[str]:
    """Differences between the invoices and the expected sums: the cost of the usage reported to clients, plus the cost
    of the requests whose end no client saw."""
    wanted: Counter[str] = Counter()
    for told in finished.values():
        wanted[told.tenant_id] += cost_of(told)
    for request_id, tenant_id, *_, cost_nanousd in rows:
        if request_id not in finished:
            wanted[tenant_id] += cost_nanousd
    return [
        f"invoice of {tenant_id}: {amount}, not {wanted[tenant_id]}"
        for tenant_id, amount in invoiced.items()
        if amount != wanted[tenant_id]
    ]
