"""Invoice drafts: calculated from ClickHouse and stored in the database, where they can become final."""

import asyncio
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID, uuid4

from gateway.billing.invoiced import UNITEMISED, BilledBefore, LineSum, calculate, month_text, requests_of
from gateway.billing.periods import month_period, zone_of
from gateway.database import Sessions
from gateway.domain.invoices.models import Invoice, InvoiceLine
from gateway.domain.invoices.service import (
    Calculation,
    Terms,
    add_draft,
    check_no_overlap,
    final_invoices,
    get_invoice,
    replace_calculation,
    terms_of,
)
from gateway.domain.principal import Principal
from gateway.http.errors import Conflict, InvalidRequest, Unavailable
from gateway.metering.windows import Window

_KINDS = {
    "input": "input tokens",
    "cached_input": "cached input tokens",
    "output": "output tokens",
    "adapter": "adapter surcharge",
    "cached_answer": "less for answers from the cache",
    "minimum": "minimum per request",
    "discount": "discount",
    UNITEMISED: "tokens",
}


class Invoicing:
    """Raises Unavailable while ClickHouse is unreachable, slow, or not configured."""

    def __init__(self, sessions: Sessions, clickhouse_url: str | None) -> None:
        self._sessions = sessions
        self._url = clickhouse_url

    async def draft_month(self, principal: Principal, tenant_id: UUID, month: str, *, now: datetime) -> Invoice:
        """Draft a calendar month in the tenant's time zone, less a beginning that a final invoice already covers."""
        async with self._sessions() as session:
            terms = await terms_of(session, tenant_id)
            finals = list(await session.scalars(final_invoices(tenant_id)))
        period = month_period(month, zone_of(terms.time_zone))
        if finals and period.start < finals[-1].period_end < period.end:
            period = Window(finals[-1].period_end, period.end)
        return await self._draft(principal, tenant_id, terms, period, now=now)

    async def draft_until(
        self, principal: Principal, tenant_id: UUID, start: datetime | None, end: datetime | None, *, now: datetime
    ) -> Invoice:
        """Draft any period on demand. start None: from the end of the last final invoice; end None: until now."""
        async with self._sessions() as session:
            terms = await terms_of(session, tenant_id)
            finals = list(await session.scalars(final_invoices(tenant_id)))
        if start is None:
            if not finals:
                raise InvalidRequest(
                    "this tenant has no final invoice that the period could begin after; say where it begins",
                    param="start",
                )
            start = finals[-1].period_end
        period = Window(start, end or now)
        if period.start >= period.end:
            raise InvalidRequest("start must be before end", param="start")
        return await self._draft(principal, tenant_id, terms, period, now=now)

    async def recalculate(self, principal: Principal, invoice_id: UUID, *, now: datetime) -> None:
        """Recalculate a draft with events that arrived since and the tenant's current terms, except the time zone."""
        invoice = await get_invoice(self._sessions, principal, invoice_id)
        if invoice.status == "final":
            raise Conflict(f"{invoice.number} is final and never changes; correct it with a credit note")
        async with self._sessions() as session:
            terms = await terms_of(session, invoice.tenant_id)
        period = Window(invoice.period_start, invoice.period_end)
        calculation = await self._calculate(invoice.tenant_id, period, invoice.time_zone)
        await replace_calculation(self._sessions, principal, invoice_id, terms, calculation, now=now)

    async def requests_of(
        self, invoice: Invoice, line: LineSum, *, limit: int, after: tuple[int, str] | None
    ) -> list[Mapping[str, Any]]:
        """At most `limit` of the requests that a line of the invoice sums up, in time order."""
        assert invoice.calculation_id is not None, "a credit note has no usage"
        return await asyncio.to_thread(
            requests_of,
            self._clickhouse_url(),
            tenant_id=invoice.tenant_id,
            calculation_id=invoice.calculation_id,
            line=line,
            limit=limit,
            after=after,
        )

    def _clickhouse_url(self) -> str:
        if self._url is None:
            raise Unavailable("this gateway has no CLICKHOUSE_URL, so it cannot bill", retry_after_s=60)
        return self._url

    async def _draft(
        self, principal: Principal, tenant_id: UUID, terms: Terms, period: Window, *, now: datetime
    ) -> Invoice:
        if period.start >= now:
            raise Conflict("the period has not begun")
        await check_no_overlap(self._sessions, tenant_id, period.start, period.end)
        calculation = await self._calculate(tenant_id, period, terms.time_zone)
        return await add_draft(
            self._sessions,
            principal,
            tenant_id=tenant_id,
            terms=terms,
            period_start=period.start,
            period_end=period.end,
            calculation=calculation,
            now=now,
        )

    async def _calculate(self, tenant_id: UUID, period: Window, time_zone: str) -> Calculation:
        calculation_id = uuid4()
        async with self._sessions() as session:
            finals = list(await session.scalars(final_invoices(tenant_id)))
        sums = await asyncio.to_thread(
            calculate,
            self._clickhouse_url(),
            tenant_id=tenant_id,
            period=period,
            zone=zone_of(time_zone),
            calculation_id=calculation_id,
            billed=[
                BilledBefore(invoice.calculation_id, invoice.subtotal_nanousd)
                for invoice in finals
                if invoice.calculation_id is not None
            ],
        )
        return Calculation(calculation_id, len(finals), _lines(sums))


def _lines(sums: Sequence[LineSum]) -> list[InvoiceLine]:
    return [
        InvoiceLine(
            position=position,
            description=_describe(line),
            month=month_text(line.month),
            is_adjustment=line.is_adjustment,
            model_id=line.model_id,
            adapter_id=line.adapter_id,
            kind=line.kind,
            unit_price_nanousd=line.unit_price_nanousd,
            num_requests=line.num_requests,
            quantity=line.quantity,
            amount_nanousd=line.amount_nanousd,
        )
        for position, line in enumerate(sums, start=1)
    ]


def _describe(line: LineSum) -> str:
    parts = [line.model_id, _KINDS.get(line.kind, line.kind)]
    if line.adapter_id:
        parts.insert(1, f"adapter {line.adapter_id}")
    if line.is_adjustment:
        parts.append(f"adjustment for {month_text(line.month)}")
    return ", ".join(parts)


def line_key(line: InvoiceLine) -> LineSum:
    """The key by which `requests_of` finds a line's requests."""
    return LineSum(
        line.is_adjustment,
        int(line.month.replace("-", "")),
        line.model_id,
        line.adapter_id,
        line.kind,
        line.unit_price_nanousd,
        line.num_requests,
        line.quantity,
        line.amount_nanousd,
    )
