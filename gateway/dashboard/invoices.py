"""Invoices: the list, one invoice with its lines, and the requests that a line is the sum of."""

from uuid import UUID

from starlette.requests import Request
from starlette.responses import Response

from gateway.admin import invoices as api
from gateway.billing.documents.texts import period, tax_label, title
from gateway.clock import utc_now
from gateway.dashboard.links import query_of
from gateway.dashboard.numbers import places_of
from gateway.dashboard.pages import ADMINS, Page
from gateway.dashboard.rendering import render
from gateway.dashboard.visitors import Visitor
from gateway.domain.invoices.service import get_invoice
from gateway.http.errors import InvalidRequest, NotFound
from gateway.http.pages import PageRequest
from gateway.services import Services

PATH = "/dashboard/invoices"
STATES = ("draft", "final")
PAGE_SIZE = 50
LINE_PAGE_SIZE = 100
_AMOUNTS = ("subtotal_nanousd", "tax_nanousd", "total_nanousd", "credit_nanousd", "due_nanousd")
_FORMATS = ("html", "pdf", "csv")


async def list_invoices(request: Request, services: Services, visitor: Visitor) -> Response:
    query = query_of(PATH, visitor.asked(request), ("tenant", "state", "after"))
    state = query["state"] or None
    if state is not None and state not in STATES:
        raise InvalidRequest(f"{state[:40]!r} is no state of an invoice; choose draft or final")
    tenant_id = visitor.shown_tenant(query["tenant"])
    page = await api.list_invoices(
        visitor.principal,
        services.sessions,
        PageRequest(limit=PAGE_SIZE, after=query["after"] or None),
        tenant_id=UUID(tenant_id) if tenant_id else None,
        status=state,  # type: ignore[arg-type]  # one of STATES
        newest_first=True,
    )
    return render(
        "invoices.html",
        visitor=visitor,
        query=query,
        states=STATES,
        tenant_id=tenant_id,
        page=page,
        period=period,
        places=places_of(getattr(each, name) for each in page.data for name in _AMOUNTS),
        now=utc_now(),
    )


async def show_invoice(request: Request, services: Services, visitor: Visitor) -> Response:
    """Raises NotFound, also for another tenant's invoice."""
    invoice_id = id_of(request)
    invoice = await get_invoice(services.sessions, visitor.principal, invoice_id)
    first = PageRequest(limit=PAGE_SIZE, after=None)
    notes = await api.list_invoices(visitor.principal, services.sessions, first, credited_invoice_id=invoice_id)
    amounts = [line.amount_nanousd for line in invoice.lines] + [getattr(invoice, name) for name in _AMOUNTS]
    return render(
        "invoice.html",
        visitor=visitor,
        invoice=invoice,
        title=title(invoice),
        period=period(invoice),
        tax_label=tax_label(invoice),
        notes=notes.data,
        places=places_of([*amounts, *(note.total_nanousd for note in notes.data)]),
        formats=_FORMATS,
        is_over=invoice.period_end <= utc_now(),
    )


async def show_line(request: Request, services: Services, visitor: Visitor) -> Response:
    """Raises NotFound, and Unavailable while ClickHouse is away."""
    invoice = await get_invoice(services.sessions, visitor.principal, id_of(request))
    position = str(request.path_params["position"])
    line = next((line for line in invoice.lines if str(line.position) == position), None)
    if line is None:
        raise NotFound("this invoice has no such line")
    query = query_of(f"{PATH}/{invoice.id}/lines/{position}", visitor.asked(request), ("after",))
    page = await api.list_line_requests(
        invoice.id, line.position, visitor.principal, services, limit=LINE_PAGE_SIZE, after=query["after"] or None
    )
    return render(
        "invoice_line.html",
        visitor=visitor,
        invoice=invoice,
        title=title(invoice),
        line=line,
        query=query,
        page=page,
        places=places_of([line.amount_nanousd, *(row["amount_nanousd"] for row in page.data)]),
    )


async def download_invoice(request: Request, services: Services, visitor: Visitor) -> Response:
    wanted = str(request.path_params["format"])
    if wanted not in _FORMATS:
        raise NotFound("an invoice is there as html, pdf and csv")
    return await api.invoice_document(id_of(request), visitor.principal, services, format=wanted)  # type: ignore[arg-type]


def id_of(request: Request) -> UUID:
    try:
        return UUID(str(request.path_params["invoice_id"]))
    except ValueError:
        raise NotFound("there is no such invoice") from None


PAGES = (
    Page("/invoices", list_invoices, who=ADMINS, label="Invoices"),
    Page("/invoices/{invoice_id}", show_invoice, who=ADMINS),
    Page("/invoices/{invoice_id}/lines/{position}", show_line, who=ADMINS),
    Page("/invoices/{invoice_id}/document.{format}", download_invoice, who=ADMINS),
)
