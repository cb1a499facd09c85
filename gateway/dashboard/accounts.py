"""How a tenant is billed: prepaid credit, credit notes, tax and address."""

from typing import Any
from uuid import UUID

from starlette.requests import Request
from starlette.responses import Response

from gateway.admin import billing_accounts as accounts_api
from gateway.admin import invoices as api
from gateway.clock import utc_now
from gateway.dashboard.amounts import shown_amount, typed_basis_points, typed_nanousd
from gateway.dashboard.forms import back_to
from gateway.dashboard.links import query_of
from gateway.dashboard.numbers import NANOUSD_PER_USD, places_of
from gateway.dashboard.pages import ADMINS, OPERATORS, FormPage, Page
from gateway.dashboard.rendering import render
from gateway.dashboard.typed import Form, Standing, Typed, changed_fields
from gateway.dashboard.visitors import Visitor
from gateway.http.errors import NotFound
from gateway.http.pages import PageRequest
from gateway.services import Services

PATH = "/dashboard/accounts"
PAGE_SIZE = 50


async def show_account(request: Request, services: Services, visitor: Visitor) -> Response:
    """Raises NotFound, also for another tenant's account."""
    tenant_id = _tenant_of(request, visitor)
    principal, sessions = visitor.principal, services.sessions
    query = query_of(f"{PATH}/{tenant_id}", visitor.asked(request), ("after",))
    terms = await accounts_api.show_account(tenant_id, principal, sessions)
    balance = await api.show_balance(tenant_id, principal, sessions)
    page = await api.list_credits(
        principal,
        sessions,
        PageRequest(limit=PAGE_SIZE, after=query["after"] or None),
        tenant_id=tenant_id,
        newest_first=True,
    )
    return render(
        "account.html",
        visitor=visitor,
        query=query,
        tenant_id=tenant_id,
        tenant=visitor.names.tenants[str(tenant_id)],
        terms=terms,
        balance_nanousd=balance.balance_nanousd,
        page=page,
        places=places_of([balance.balance_nanousd, *(entry.amount_nanousd for entry in page.data)]),
        now=utc_now(),
    )


async def show_credit(request: Request, services: Services, visitor: Visitor, typed: Typed) -> Response:
    tenant_id = _tenant_of(request, visitor)
    return render(
        "credit_new.html",
        visitor=visitor,
        form=Form(typed),
        tenant_id=tenant_id,
        tenant=visitor.names.tenants[str(tenant_id)],
    )


async def add_credit(request: Request, services: Services, visitor: Visitor, typed: Typed) -> Response:
    tenant_id = _tenant_of(request, visitor)
    draft = api.CreditDraft(
        tenant_id=tenant_id,
        amount_nanousd=typed_nanousd(typed.text("amount_nanousd"), param="amount_nanousd"),
        note=typed.text("note"),
    )
    await api.post_credit(draft, visitor.principal, services.sessions)
    return back_to(f"{PATH}/{tenant_id}", "credit")


async def show_terms(request: Request, services: Services, visitor: Visitor, typed: Typed) -> Response:
    tenant_id = _tenant_of(request, visitor)
    return render(
        "account_edit.html",
        visitor=visitor,
        form=Form(typed, await _standing(services, visitor, tenant_id)),
        tenant_id=tenant_id,
        tenant=visitor.names.tenants[str(tenant_id)],
    )


async def change_terms(request: Request, services: Services, visitor: Visitor, typed: Typed) -> Response:
    tenant_id = _tenant_of(request, visitor)
    changed_fields(typed, await _standing(services, visitor, tenant_id))
    fields: dict[str, Any] = {name: typed.text(name) for name in ("time_zone", "tax_name", "recipient")}
    fields["tax_basis_points"] = typed_basis_points(typed.text("tax_basis_points") or "0", param="tax_basis_points")
    draft = accounts_api.BillingAccountDraft(**fields)
    await accounts_api.put_account(tenant_id, draft, visitor.principal, services.sessions)
    return back_to(f"{PATH}/{tenant_id}", "saved")


async def _standing(services: Services, visitor: Visitor, tenant_id: UUID) -> Standing:
    terms = await accounts_api.show_account(tenant_id, visitor.principal, services.sessions)
    percent = shown_amount(terms.tax_basis_points * NANOUSD_PER_USD // 100)
    return {**terms.model_dump(exclude={"tax_basis_points", "version"}), "tax_basis_points": percent}


def _tenant_of(request: Request, visitor: Visitor) -> UUID:
    tenant_id = str(request.path_params["tenant_id"])
    if tenant_id not in visitor.names.tenants:
        raise NotFound("there is no such tenant")
    return UUID(tenant_id)


PAGES = (
    Page("/accounts/{tenant_id}", show_account, who=ADMINS),
    FormPage("/accounts/{tenant_id}/credit", show_credit, add_credit, who=OPERATORS),
    FormPage("/accounts/{tenant_id}/edit", show_terms, change_terms, who=OPERATORS),
)
