"""Drafts become final, and final invoices never change. All billing changes run one after another (`take_lock`)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from sqlalchemy import Select, func, select
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import selectinload

from gateway.database import Sessions
from gateway.domain.audit.fields import shown
from gateway.domain.audit.service import record
from gateway.domain.invoices.models import BillingAccount, CreditEntry, Invoice, InvoiceLine
from gateway.domain.locks import take_lock
from gateway.domain.money import share_of
from gateway.domain.principal import Principal
from gateway.domain.tenants.models import Tenant
from gateway.domain.versions import check_version, edit_of_maybe_none
from gateway.http.errors import Conflict, InvalidRequest, NotFound
from protocol.ids import new_id


@dataclass(frozen=True)
class Terms:
    """How a tenant is billed."""

    time_zone: str
    tax_name: str
    tax_basis_points: int
    recipient: str
    version: int = 0


class Amounts(NamedTuple):
    subtotal_nanousd: int
    tax_nanousd: int
    total_nanousd: int


@dataclass(frozen=True)
class Calculation:
    """The result of calculating an invoice. `lines` have no invoice yet; num_final_before: see `Invoice`."""

    calculation_id: UUID
    num_final_before: int
    lines: Sequence[InvoiceLine]


def amounts_of(lines: Sequence[InvoiceLine], *, tax_basis_points: int) -> Amounts:
    """The tax is rounded once, on the sum."""
    subtotal = sum(line.amount_nanousd for line in lines)
    tax = share_of(subtotal, basis_points=tax_basis_points)
    return Amounts(subtotal, tax, subtotal + tax)


def invoices_visible_to(tenant_id: UUID | None, *, with_drafts: bool) -> Select[Invoice]:
    """A tenant's invoices; None: all."""
    query = select(Invoice) if with_drafts else select(Invoice).where(Invoice.status == "final")
    return query if tenant_id is None else query.where(Invoice.tenant_id == tenant_id)


def final_invoices(tenant_id: UUID) -> Select[Invoice]:
    """A tenant's final invoices, without credit notes, in the order of their periods."""
    is_mine = Invoice.tenant_id == tenant_id, Invoice.kind == "invoice", Invoice.status == "final"
    return select(Invoice).where(*is_mine).order_by(Invoice.period_end)


def credit_entries_of(tenant_id: UUID | None) -> Select[CreditEntry]:
    query = select(CreditEntry)
    return query if tenant_id is None else query.where(CreditEntry.tenant_id == tenant_id)


async def credit_balance(session: AsyncSession, tenant_id: UUID) -> int:
    total = select(func.coalesce(func.sum(CreditEntry.amount_nanousd), 0)).where(CreditEntry.tenant_id == tenant_id)
    # PostgreSQL's sum of bigint is a numeric.
    return int(await session.scalar(total) or 0)


async def terms_of(session: AsyncSession, tenant_id: UUID) -> Terms:
    """Raises NotFound. A deleted tenant is still billed."""
    tenant = await session.get(Tenant, tenant_id)
    if tenant is None:
        raise NotFound("there is no such tenant")
    account = await session.get(BillingAccount, tenant_id)
    if account is None:
        return Terms("UTC", "", 0, tenant.name)
    return Terms(
        account.time_zone, account.tax_name, account.tax_basis_points, account.recipient or tenant.name, account.version
    )


async def set_terms(
    sessions: Sessions,
    principal: Principal,
    tenant_id: UUID,
    terms: Terms,
    *,
    version: int | None = None,
    now: datetime,
) -> None:
    """Existing invoices keep their terms. Raises NotFound or Stale."""
    fields = {
        "time_zone": terms.time_zone,
        "tax_name": terms.tax_name,
        "tax_basis_points": terms.tax_basis_points,
        "recipient": terms.recipient,
    }
    async with edit_of_maybe_none(sessions) as session:
        await terms_of(session, tenant_id)
        account = await session.get(BillingAccount, tenant_id)
        check_version(account, version)
        before = None if account is None else shown(account)
        if account is None:
            account = BillingAccount(tenant_id=tenant_id)
            session.add(account)
        for name, value in fields.items():
            setattr(account, name, value)
        await record(
            session,
            principal,
            "billing_account.change",
            object_id=tenant_id,
            tenant_id=tenant_id,
            now=now,
            detail=fields,
            before=before,
            after=account,
        )


async def get_invoice(sessions: Sessions, principal: Principal, invoice_id: UUID) -> Invoice:
    """The invoice with its lines. Tenants see only final ones. Raises NotFound."""
    async with sessions() as session:
        invoice = await session.get(Invoice, invoice_id, options=[selectinload(Invoice.lines)])
    if invoice is None or (invoice.status != "final" and not principal.is_platform_admin):
        raise NotFound("there is no such invoice")
    principal.require_tenant(invoice.tenant_id)
    return invoice


async def add_draft(
    sessions: Sessions,
    principal: Principal,
    *,
    tenant_id: UUID,
    terms: Terms,
    period_start: datetime,
    period_end: datetime,
    calculation: Calculation,
    now: datetime,
) -> Invoice:
    """Raises Conflict if another invoice of the tenant covers a part of the period."""
    amounts = amounts_of(calculation.lines, tax_basis_points=terms.tax_basis_points)
    invoice = Invoice(
        id=new_id(now),
        kind="invoice",
        status="draft",
        tenant_id=tenant_id,
        recipient=terms.recipient,
        time_zone=terms.time_zone,
        period_start=period_start,
        period_end=period_end,
        calculation_id=calculation.calculation_id,
        calculated_at=now,
        num_final_before=calculation.num_final_before,
        tax_name=terms.tax_name,
        tax_basis_points=terms.tax_basis_points,
        **amounts._asdict(),
        credit_nanousd=0,
        due_nanousd=amounts.total_nanousd,
        created_at=now,
        lines=list(calculation.lines),
    )
    async with sessions.begin() as session:
        await take_lock(session, "billing")
        await _check_no_overlap(session, tenant_id, period_start, period_end)
        session.add(invoice)
        await _record(session, principal, "invoice.draft", invoice, now, after=invoice)
    return invoice


async def check_no_overlap(sessions: Sessions, tenant_id: UUID, start: datetime, end: datetime) -> None:
    """Called before the work of a calculation. Raises Conflict as `add_draft` does."""
    async with sessions() as session:
        await _check_no_overlap(session, tenant_id, start, end)


async def replace_calculation(
    sessions: Sessions, principal: Principal, invoice_id: UUID, terms: Terms, calculation: Calculation, *, now: datetime
) -> None:
    """Replace the lines and amounts of a draft. Raises NotFound or Conflict."""
    amounts = amounts_of(calculation.lines, tax_basis_points=terms.tax_basis_points)
    async with sessions.begin() as session:
        await take_lock(session, "billing")
        invoice = await _require_draft(session, invoice_id)
        before = shown(invoice)
        invoice.lines.clear()
        # Delete the old lines before the new ones are inserted: they have the same positions.
        await session.flush()
        invoice.lines.extend(calculation.lines)
        invoice.recipient, invoice.tax_name = terms.recipient, terms.tax_name
        invoice.tax_basis_points = terms.tax_basis_points
        invoice.calculation_id, invoice.calculated_at = calculation.calculation_id, now
        invoice.num_final_before = calculation.num_final_before
        for name, value in amounts._asdict().items():
            setattr(invoice, name, value)
        invoice.due_nanousd = amounts.total_nanousd
        await _record(session, principal, "invoice.recalculate", invoice, now, before=before, after=invoice)


async def delete_draft(sessions: Sessions, principal: Principal, invoice_id: UUID, *, now: datetime) -> None:
    async with sessions.begin() as session:
        await take_lock(session, "billing")
        invoice = await _require_draft(session, invoice_id)
        before = shown(invoice)
        await session.delete(invoice)
        await _record(session, principal, "invoice.delete", invoice, now, before=before)


async def finalize(sessions: Sessions, principal: Principal, invoice_id: UUID, *, now: datetime) -> None:
    """Number the draft as it stands and pay from the tenant's credit what that covers. Raises NotFound or Conflict."""
    async with sessions.begin() as session:
        await take_lock(session, "billing")
        invoice = await _require_draft(session, invoice_id)
        if invoice.calculated_at < invoice.period_end:
            raise Conflict(
                "it was calculated before its period was over; recalculate it"
                if invoice.period_end <= now
                else f"its period is not over before {invoice.period_end.isoformat()}"
            )
        num_final = await session.scalar(select(func.count()).select_from(final_invoices(invoice.tenant_id).subquery()))
        if num_final != invoice.num_final_before:
            raise Conflict("another invoice of the tenant became final after it was calculated; recalculate it")
        balance = await credit_balance(session, invoice.tenant_id)
        await _close(session, principal, invoice, credit_nanousd=min(balance, invoice.total_nanousd), now=now)


async def add_credit_note(
    sessions: Sessions, principal: Principal, invoice_id: UUID, *, net_nanousd: int, reason: str, now: datetime
) -> Invoice:
    """Return `net_nanousd` of a final invoice, with its tax, to the tenant's credit. Raises NotFound or Conflict.

    All notes on an invoice together return at most the invoice's amount and, to the nano-dollar, its tax.
    """
    async with sessions.begin() as session:
        await take_lock(session, "billing")
        credited = await session.get(Invoice, invoice_id)
        if credited is None or credited.kind != "invoice" or credited.status != "final":
            raise NotFound("there is no such final invoice")
        notes = list(await session.scalars(select(Invoice).where(Invoice.credited_invoice_id == invoice_id)))
        net_before = -sum(note.subtotal_nanousd for note in notes)
        tax_before = -sum(note.tax_nanousd for note in notes)
        if net_before + net_nanousd > credited.subtotal_nanousd:
            left = max(0, credited.subtotal_nanousd - net_before)
            raise Conflict(f"at most {left} nano-dollars of the invoice are left to take back", param="net_nanousd")
        tax = share_of(net_before + net_nanousd, basis_points=credited.tax_basis_points) - tax_before
        note = _note_on(credited, net_nanousd=net_nanousd, tax_nanousd=tax, reason=reason, now=now)
        session.add(note)
        await session.flush()
        await _close(session, principal, note, credit_nanousd=note.total_nanousd, now=now)
    return note


async def grant_credit(
    sessions: Sessions, principal: Principal, *, tenant_id: UUID, amount_nanousd: int, note: str, now: datetime
) -> CreditEntry:
    """Add credit, prepaid or given; a negative amount takes some back, at most what is left."""
    entry = CreditEntry(
        id=new_id(now), tenant_id=tenant_id, at=now, kind="grant", amount_nanousd=amount_nanousd, note=note
    )
    async with sessions.begin() as session:
        await take_lock(session, "billing")
        await terms_of(session, tenant_id)
        balance = await credit_balance(session, tenant_id)
        if balance + amount_nanousd < 0:
            raise InvalidRequest(f"only {balance} nano-dollars of credit are left", param="amount_nanousd")
        session.add(entry)
        detail = {"amount_nanousd": amount_nanousd, "note": note}
        await record(
            session,
            principal,
            "credit.grant",
            object_id=entry.id,
            tenant_id=tenant_id,
            now=now,
            detail=detail,
            after=entry,
        )
    return entry


def _note_on(credited: Invoice, *, net_nanousd: int, tax_nanousd: int, reason: str, now: datetime) -> Invoice:
    total = -(net_nanousd + tax_nanousd)
    return Invoice(
        id=new_id(now),
        kind="credit_note",
        status="draft",
        tenant_id=credited.tenant_id,
        recipient=credited.recipient,
        time_zone=credited.time_zone,
        period_start=credited.period_start,
        period_end=credited.period_end,
        calculated_at=now,
        num_final_before=0,
        tax_name=credited.tax_name,
        tax_basis_points=credited.tax_basis_points,
        subtotal_nanousd=-net_nanousd,
        tax_nanousd=-tax_nanousd,
        total_nanousd=total,
        credit_nanousd=0,
        due_nanousd=total,
        credited_invoice_id=credited.id,
        created_at=now,
        lines=[
            InvoiceLine(
                position=1,
                description=f"{reason} (on {credited.number})",
                month="",
                is_adjustment=False,
                model_id="",
                adapter_id="",
                kind="credit",
                unit_price_nanousd=-net_nanousd,
                num_requests=0,
                quantity=1,
                amount_nanousd=-net_nanousd,
            )
        ],
    )


async def _close(
    session: AsyncSession, principal: Principal, invoice: Invoice, *, credit_nanousd: int, now: datetime
) -> None:
    """Make the invoice final; a credit entry records what it takes from the credit or, if negative, adds to it."""
    before = shown(invoice)
    invoice.number = await _next_number(session, invoice.kind)
    invoice.status, invoice.finalized_at = "final", now
    invoice.credit_nanousd = credit_nanousd
    invoice.due_nanousd = invoice.total_nanousd - credit_nanousd
    await session.flush()
    if credit_nanousd:
        session.add(
            CreditEntry(
                id=new_id(now),
                tenant_id=invoice.tenant_id,
                at=now,
                kind=invoice.kind,
                amount_nanousd=-credit_nanousd,
                invoice_id=invoice.id,
                note=invoice.number,
            )
        )
    await _record(session, principal, f"{invoice.kind}.finalize", invoice, now, before=before, after=invoice)


async def _next_number(session: AsyncSession, kind: str) -> str:
    """The next number, without gaps: the lock is held until the number is used."""
    used = select(func.count()).select_from(Invoice).where(Invoice.kind == kind, Invoice.number.is_not(None))
    prefix = "INV" if kind == "invoice" else "CN"
    return f"{prefix}-{(await session.scalar(used) or 0) + 1:06}"


async def _require_draft(session: AsyncSession, invoice_id: UUID) -> Invoice:
    invoice = await session.get(Invoice, invoice_id, options=[selectinload(Invoice.lines)])
    if invoice is None:
        raise NotFound("there is no such invoice")
    if invoice.status == "final":
        raise Conflict(f"{invoice.number} is final and never changes; correct it with a credit note")
    return invoice


async def _check_no_overlap(session: AsyncSession, tenant_id: UUID, start: datetime, end: datetime) -> None:
    overlapping = select(Invoice).where(
        Invoice.tenant_id == tenant_id,
        Invoice.kind == "invoice",
        Invoice.period_start < end,
        Invoice.period_end > start,
    )
    other = await session.scalar(overlapping.limit(1))
    if other is not None:
        raise Conflict(
            f"the {other.status} invoice {other.number or other.id} covers {other.period_start.isoformat()} to "
            f"{other.period_end.isoformat()}, a part of this period"
        )


async def _record(
    session: AsyncSession,
    principal: Principal,
    action: str,
    invoice: Invoice,
    now: datetime,
    *,
    before: Mapping[str, Any] | None = None,
    after: Invoice | None = None,
) -> None:
    detail: dict[str, Any] = {
        "number": invoice.number,
        "from": invoice.period_start.isoformat(),
        "to": invoice.period_end.isoformat(),
        "total_nanousd": invoice.total_nanousd,
    }
    await record(
        session,
        principal,
        action,
        object_id=invoice.id,
        tenant_id=invoice.tenant_id,
        now=now,
        detail=detail,
        before=before,
        after=after,
    )
