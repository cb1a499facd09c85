from typing import Annotated
from uuid import UUID

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field

from gateway.admin.etags import IfMatchDep, TaggedRoute, seen_version
from gateway.admin.names import Draft, Version
from gateway.billing.periods import zone_of
from gateway.clock import utc_now
from gateway.domain.invoices.service import Terms, set_terms, terms_of
from gateway.services import AdminDep, PlatformDep, SessionsDep

router = APIRouter(prefix="/billing-accounts", tags=["invoices"], route_class=TaggedRoute)


class BillingAccountDraft(Draft):
    """How a tenant is billed from now on. Existing invoices keep their terms; a draft takes the new ones, except the
    time zone, when it is recalculated."""

    time_zone: Annotated[str, Field(max_length=64)] = "UTC"
    """A name of the tz database, such as Europe/Berlin. Months begin and end at midnight in this zone."""
    tax_name: Annotated[str, Field(max_length=60)] = ""
    tax_basis_points: Annotated[int, Field(ge=0, le=10_000)] = 0
    """1,900 is 19 %."""
    recipient: Annotated[str, Field(max_length=1000)] = ""
    """Name and address, on separate lines. Empty: the tenant's name."""
    version: Version | None = None


class BillingAccountView(BaseModel):
    model_config = ConfigDict(from_attributes=True)

    time_zone: str
    tax_name: str
    tax_basis_points: int
    recipient: str
    version: int
    """0 until terms are first set."""


@router.get("/{tenant_id}")
async def show_account(tenant_id: UUID, admin: AdminDep, sessions: SessionsDep) -> BillingAccountView:
    admin.require_tenant(tenant_id)
    async with sessions() as session:
        return BillingAccountView.model_validate(await terms_of(session, tenant_id))


@router.put("/{tenant_id}")
async def put_account(
    tenant_id: UUID,
    draft: BillingAccountDraft,
    admin: PlatformDep,
    sessions: SessionsDep,
    if_match: IfMatchDep = None,
) -> BillingAccountView:
    zone_of(draft.time_zone)
    version = seen_version(if_match, draft.version)
    terms = Terms(**draft.model_dump(exclude={"version"}))
    await set_terms(sessions, admin, tenant_id, terms, version=version, now=utc_now())
    async with sessions() as session:
        return BillingAccountView.model_validate(await terms_of(session, tenant_id))
