import asyncio
from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID

from fastapi import APIRouter, Query, Response
from pydantic import BaseModel, ConfigDict, Field

from gateway.admin.names import Draft, Id, Moment
from gateway.billing.documents.csv import as_csv
from gateway.billing.documents.html import as_html
from gateway.billing.documents.pdf import as_pdf
from gateway.billing.invoicing import line_key
from gateway.clock import utc_now
from gateway.domain.invoices.models import CreditEntry, Invoice
from gateway.domain.invoices.service import (
    add_credit_note,
    credit_balance,
    credit_entries_of,
    delete_draft,
    finalize,
    get_invoice,
    grant_credit,
    invoices_visible_to,
)
from gateway.http.errors import InvalidRequest, NotFound
from gateway.http.pages import MAX_LIMIT, Page, PageDep, fetch_page
from gateway.metering.cursors import decode_cursor, encode_cursor
from gateway.metering.statements import micros
from gateway.services import AdminDep, PlatformDep, ServicesDep, SessionsDep, visible_tenant

router = APIRouter(prefix="/invoices", tags=["invoices"])
credits_router = APIRouter(prefix="/credits", tags=["invoices"])
_DOCUMENT_HEADERS = {
    "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'",
    "cache-control": "no-store",
    "x-content-type-options": "nosniff",
}
Amount = Annotated[int, Field(ge=-(10**17), le=10**17)]
Reason = Annotated[str, Field(min_length=1, max_length=400)]


class InvoiceDraft(Draft):
    """Send either `month`, a calendar month in the tenant's time zone, or a period from `start` (default: the end of
    the last final invoice) to `end` (exclusive; default: now)."""

    tenant_id: Id
    month: Annotated[str, Field(pattern=r"^\d{4}-\d\d$")] | None = None
    start: Moment | None = None
    end: Moment | None = None


class CreditNoteDraft(Draft):
    net_nanousd: Annotated[int, Field(gt=0, le=10**17)]
    """Before tax. The invoice's tax on this amount is taken back, too."""
    reason: Reason


class CreditDraft(Draft):
    tenant_id: Id
    amount_nanousd: Amount
    """A negative amount takes credit back."""
    note: Reason


class LineView(BaseModel):
    model_config = ConfigDict(from_attributes=True)

    position: int
    description: str
    month: str
    is_adjustment: bool
    model_id: str
    adapter_id: str
    kind: str
    """input | cached_input | output | adapter | cached_answer | minimum | discount | credit | tokens (where only the
    total cost is known)"""
    unit_price_nanousd: int
    """0 where the price differs from request to request: minimums and discounts."""
    num_requests: int
    quantity: int
    amount_nanousd: int


class InvoiceSummary(BaseModel):
    model_config = ConfigDict(from_attributes=True)

    id: UUID
    kind: str
    """invoice | credit_note"""
    status: str
    """draft | final"""
    number: str | None
    tenant_id: UUID
    recipient: str
    time_zone: str
    period_start: datetime
    period_end: datetime
    calculated_at: datetime
    tax_name: str
    tax_basis_points: int
    subtotal_nanousd: int
    tax_nanousd: int
    total_nanousd: int
    credit_nanousd: int
    """The part of the total paid from prepaid credit; a negative amount was added to the credit."""
    due_nanousd: int
    credited_invoice_id: UUID | None
    created_at: datetime
    finalized_at: datetime | None


class InvoiceView(InvoiceSummary):
    lines: list[LineView]
    """The requests of a line: `GET /admin/v1/invoices/{id}/lines/{position}/requests`."""


class RequestsAnswer(BaseModel):
    """What the line billed for each request (`quantity`, `amount_nanousd`), in the order of the requests' arrival."""

    data: Sequence[dict[str, Any]]
    next: str | None


class CreditView(BaseModel):
    model_config = ConfigDict(from_attributes=True)

    id: UUID
    tenant_id: UUID
    at: datetime
    kind: str
    """grant | invoice (used, or overpaid) | credit_note"""
    amount_nanousd: int
    invoice_id: UUID | None
    note: str


class BalanceView(BaseModel):
    tenant_id: UUID
    balance_nanousd: int


@router.post("", status_code=201)
async def post_invoice(draft: InvoiceDraft, admin: PlatformDep, services: ServicesDep) -> InvoiceView:
    """Draft an invoice for a month or any other period; platform administrators only.

    409 if another invoice covers a part of the period, or if the period has not begun.
    """
    now = utc_now()
    if draft.month is not None:
        if draft.start or draft.end:
            raise InvalidRequest("send either month, or start and end", param="month")
        invoice = await services.invoicing.draft_month(admin, draft.tenant_id, draft.month, now=now)
    else:
        invoice = await services.invoicing.draft_until(admin, draft.tenant_id, draft.start, draft.end, now=now)
    return InvoiceView.model_validate(invoice)


@router.get("")
async def list_invoices(
    admin: AdminDep,
    sessions: SessionsDep,
    page: PageDep,
    tenant_id: UUID | None = None,
    status: Literal["draft", "final"] | None = None,
    credited_invoice_id: Annotated[UUID | None, Query(description="only the credit notes of this invoice")] = None,
    newest_first: bool = False,
) -> Page[InvoiceSummary]:
    """List invoices and credit notes. Tenant administrators see only those of their tenant that are final."""
    if tenant_id is not None:
        admin.require_tenant(tenant_id)
    query = invoices_visible_to(tenant_id or visible_tenant(admin), with_drafts=admin.is_platform_admin)
    if status is not None:
        query = query.where(Invoice.status == status)
    if credited_invoice_id is not None:
        query = query.where(Invoice.credited_invoice_id == credited_invoice_id)
    async with sessions() as session:
        return await fetch_page(
            session, query, Invoice.id, page, InvoiceSummary.model_validate, is_newest_first=newest_first
        )


@router.get("/{invoice_id}")
async def show_invoice(invoice_id: UUID, admin: AdminDep, sessions: SessionsDep) -> InvoiceView:
    return InvoiceView.model_validate(await get_invoice(sessions, admin, invoice_id))


@router.get("/{invoice_id}/lines/{position}/requests")
async def list_line_requests(
    invoice_id: UUID,
    position: int,
    admin: AdminDep,
    services: ServicesDep,
    limit: Annotated[int, Query(ge=1, le=MAX_LIMIT)] = 100,
    after: Annotated[str | None, Query(max_length=4000)] = None,
) -> RequestsAnswer:
    """List exactly the requests that the line sums up, whatever has become of them since.

    404 for a line of a credit note, which bills no usage.
    """
    invoice = await get_invoice(services.sessions, admin, invoice_id)
    line = next((line for line in invoice.lines if line.position == position), None)
    if line is None or invoice.calculation_id is None:
        raise NotFound("there is no such line of usage")
    place = None if after is None else tuple(decode_cursor(after, int, str))
    rows = await services.invoicing.requests_of(invoice, line_key(line), limit=limit + 1, after=place)
    shown, has_more = rows[:limit], len(rows) > limit
    cursor = encode_cursor(micros(shown[-1]["timestamp"]), shown[-1]["request_id"]) if has_more else None
    return RequestsAnswer(data=[dict(row) for row in shown], next=cursor)


@router.get("/{invoice_id}/document", response_class=Response)
async def invoice_document(
    invoice_id: UUID, admin: AdminDep, services: ServicesDep, format: Literal["html", "pdf", "csv"] = "html"
) -> Response:
    """Download the invoice: HTML or PDF to print or to send, CSV for a spreadsheet."""
    invoice = await get_invoice(services.sessions, admin, invoice_id)
    name = f"{invoice.number or 'draft'}.{format}"
    headers = {**_DOCUMENT_HEADERS, "content-disposition": f'attachment; filename="{name}"'}
    if format == "csv":
        return Response(as_csv(invoice), media_type="text/csv", headers=headers)
    if format == "pdf":
        # Rendering a long invoice takes a second.
        body = await asyncio.to_thread(as_pdf, invoice, font=services.settings.invoice_font)
        return Response(body, media_type="application/pdf", headers=headers)
    return Response(as_html(invoice), media_type="text/html", headers=headers)


@router.post("/{invoice_id}/recalculate")
async def recalculate_invoice(invoice_id: UUID, admin: PlatformDep, services: ServicesDep) -> InvoiceView:
    """Recalculate a draft with the usage that has arrived since and the tenant's current terms, except the time zone.

    409 for a final invoice.
    """
    await services.invoicing.recalculate(admin, invoice_id, now=utc_now())
    return InvoiceView.model_validate(await get_invoice(services.sessions, admin, invoice_id))


@router.post("/{invoice_id}/finalize")
async def finalize_invoice(invoice_id: UUID, admin: PlatformDep, sessions: SessionsDep) -> InvoiceView:
    """Make a draft final: it gets its number, is paid from prepaid credit as far as that goes, and never changes again.

    409 before its period is over, and if the draft has to be recalculated first.
    """
    await finalize(sessions, admin, invoice_id, now=utc_now())
    return InvoiceView.model_validate(await get_invoice(sessions, admin, invoice_id))


@router.delete("/{invoice_id}", status_code=204)
async def remove_invoice(invoice_id: UUID, admin: PlatformDep, sessions: SessionsDep) -> None:
    """Delete a draft. 409 for a final invoice."""
    await delete_draft(sessions, admin, invoice_id, now=utc_now())


@router.post("/{invoice_id}/credit-notes", status_code=201)
async def post_credit_note(
    invoice_id: UUID, draft: CreditNoteDraft, admin: PlatformDep, sessions: SessionsDep
) -> InvoiceView:
    """Take back a part of a final invoice, with its tax; the amount becomes the tenant's credit.

    409 if less than this is left of the invoice.
    """
    note = await add_credit_note(
        sessions, admin, invoice_id, net_nanousd=draft.net_nanousd, reason=draft.reason, now=utc_now()
    )
    return InvoiceView.model_validate(note)


@credits_router.post("", status_code=201)
async def post_credit(draft: CreditDraft, admin: PlatformDep, sessions: SessionsDep) -> CreditView:
    return CreditView.model_validate(await grant_credit(sessions, admin, **draft.model_dump(), now=utc_now()))


@credits_router.get("")
async def list_credits(
    admin: AdminDep,
    sessions: SessionsDep,
    page: PageDep,
    tenant_id: UUID | None = None,
    newest_first: bool = False,
) -> Page[CreditView]:
    if tenant_id is not None:
        admin.require_tenant(tenant_id)
    async with sessions() as session:
        query = credit_entries_of(tenant_id or visible_tenant(admin))
        return await fetch_page(
            session, query, CreditEntry.id, page, CreditView.model_validate, is_newest_first=newest_first
        )


@credits_router.get("/{tenant_id}/balance")
async def show_balance(tenant_id: UUID, admin: AdminDep, sessions: SessionsDep) -> BalanceView:
    admin.require_tenant(tenant_id)
    async with sessions() as session:
        return BalanceView(tenant_id=tenant_id, balance_nanousd=await credit_balance(session, tenant_id))
