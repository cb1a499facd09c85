"""An operator's actions on invoices: draft, recalculate, finalize, delete, and credit notes."""

from starlette.requests import Request
from starlette.responses import Response

from gateway.admin import invoices as api
from gateway.billing.documents.texts import period, title
from gateway.dashboard.amounts import typed_nanousd
from gateway.dashboard.forms import back_to, confirmation
from gateway.dashboard.invoices import PATH, id_of
from gateway.dashboard.numbers import exact_money
from gateway.dashboard.pages import OPERATORS, FormPage
from gateway.dashboard.rendering import render
from gateway.dashboard.typed import Form, Typed
from gateway.dashboard.visitors import Visitor
from gateway.dashboard.zones import typed_moment
from gateway.domain.invoices.models import Invoice
from gateway.domain.invoices.service import get_invoice
from gateway.http.errors import Conflict, InvalidRequest, NotFound
from gateway.services import Services


async def show_new(request: Request, services: Services, visitor: Visitor, typed: Typed) -> Response:
    standing = {"tenant_id": visitor.shown_tenant(request.query_params.get("tenant", "")) or ""}
    return render("invoice_new.html", visitor=visitor, form=Form(typed, standing))


async def add_draft(request: Request, services: Services, visitor: Visitor, typed: Typed) -> Response:
    try:
        tenant_id = visitor.tenant_called(typed.text("tenant_id"))
    except NotFound as error:
        raise InvalidRequest(
            error.message if typed.text("tenant_id") else "choose a tenant", param="tenant_id"
        ) from None
    draft = api.InvoiceDraft.model_validate(
        {
            "tenant_id": tenant_id,
            "month": typed.text("month") or None,
            "start": typed_moment(typed.text("start"), visitor.zone, param="start"),
            "end": typed_moment(typed.text("end"), visitor.zone, param="end"),
        }
    )
    made = await api.post_invoice(draft, visitor.principal, services)
    return back_to(f"{PATH}/{made.id}", "drafted")


async def ask_finalize(request: Request, services: Services, visitor: Visitor, typed: Typed) -> Response:
    invoice = await _draft(request, services, visitor)
    return _confirm(
        visitor,
        typed,
        invoice,
        heading="Finalize this draft?",
        text=f"{period(invoice)}, {exact_money(invoice.total_nanousd)} in all. It gets the next number, takes what the "
        "tenant's prepaid credit covers, and never changes again; a credit note can take a part of it back.",
        button="Finalize",
    )


async def finalize(request: Request, services: Services, visitor: Visitor, typed: Typed) -> Response:
    invoice = await _as_it_was_shown(request, services, visitor, typed)
    await api.finalize_invoice(invoice.id, visitor.principal, services.sessions)
    return back_to(f"{PATH}/{invoice.id}", "finalized")


async def ask_recalculate(request: Request, services: Services, visitor: Visitor, typed: Typed) -> Response:
    invoice = await _draft(request, services, visitor)
    return _confirm(
        visitor,
        typed,
        invoice,
        heading="Recalculate this draft?",
        text="Its lines are made anew, with the usage that has come since and the tenant's tax and address as they are "
        "now.",
        button="Recalculate",
    )


async def recalculate(request: Request, services: Services, visitor: Visitor, typed: Typed) -> Response:
    invoice = await _draft(request, services, visitor)
    await api.recalculate_invoice(invoice.id, visitor.principal, services)
    return back_to(f"{PATH}/{invoice.id}", "recalculated")


async def ask_delete(request: Request, services: Services, visitor: Visitor, typed: Typed) -> Response:
    invoice = await _draft(request, services, visitor)
    return _confirm(
        visitor,
        typed,
        invoice,
        heading="Delete this draft?",
        text=f"{period(invoice)}. Usage is not touched; a new draft can be made of it at any time.",
        button="Delete",
    )


async def delete(request: Request, services: Services, visitor: Visitor, typed: Typed) -> Response:
    invoice = await _draft(request, services, visitor)
    await api.remove_invoice(invoice.id, visitor.principal, services.sessions)
    return back_to(PATH, "deleted")


async def show_credit_note(request: Request, services: Services, visitor: Visitor, typed: Typed) -> Response:
    invoice = await get_invoice(services.sessions, visitor.principal, id_of(request))
    return render("credit_note_new.html", visitor=visitor, form=Form(typed), invoice=invoice, title=title(invoice))


async def add_credit_note(request: Request, services: Services, visitor: Visitor, typed: Typed) -> Response:
    draft = api.CreditNoteDraft(
        net_nanousd=typed_nanousd(typed.text("net_nanousd"), param="net_nanousd"), reason=typed.text("reason")
    )
    made = await api.post_credit_note(id_of(request), draft, visitor.principal, services.sessions)
    return back_to(f"{PATH}/{made.id}", "credited")


async def _draft(request: Request, services: Services, visitor: Visitor) -> Invoice:
    """Raises NotFound, or Conflict for an invoice that is already final."""
    invoice = await get_invoice(services.sessions, visitor.principal, id_of(request))
    if invoice.status == "final":
        raise Conflict(f"{invoice.number} is final and never changes; a credit note can take a part of it back")
    return invoice


async def _as_it_was_shown(request: Request, services: Services, visitor: Visitor, typed: Typed) -> Invoice:
    """Raises Conflict if the draft was recalculated since the visitor saw it."""
    invoice = await _draft(request, services, visitor)
    if typed.text("calculation") != str(invoice.calculation_id):
        raise Conflict("the draft was calculated anew while you looked; look at what it comes to now")
    return invoice


def _confirm(visitor: Visitor, typed: Typed, invoice: Invoice, *, heading: str, text: str, button: str) -> Response:
    return confirmation(
        visitor,
        typed,
        title=heading,
        text=text,
        button=button,
        back=f"{PATH}/{invoice.id}",
        back_label=f"Back to the {title(invoice).lower()}",
        carried={"calculation": str(invoice.calculation_id)},
    )


PAGES = (
    FormPage("/invoices/new", show_new, add_draft, who=OPERATORS),
    FormPage("/invoices/{invoice_id}/finalize", ask_finalize, finalize, who=OPERATORS),
    FormPage("/invoices/{invoice_id}/recalculate", ask_recalculate, recalculate, who=OPERATORS),
    FormPage("/invoices/{invoice_id}/delete", ask_delete, delete, who=OPERATORS),
    FormPage("/invoices/{invoice_id}/credit-note", show_credit_note, add_credit_note, who=OPERATORS),
)
