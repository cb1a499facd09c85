"""The time since which a tenant's usage is on no final invoice."""

from datetime import UTC, datetime
from uuid import UUID

from sqlalchemy.ext.asyncio import AsyncSession

from gateway.domain.invoices.service import final_invoices
from gateway.domain.tenants.models import Tenant

_LONG_AGO = datetime(2000, 1, 1, tzinfo=UTC)


async def unbilled_since(session: AsyncSession, tenant_id: UUID) -> datetime:
    """The end of the last final invoice's period; without a final invoice, the creation time of the tenant."""
    finals = list(await session.scalars(final_invoices(tenant_id)))
    if finals:
        return finals[-1].period_end
    tenant = await session.get(Tenant, tenant_id)
    return tenant.created_at if tenant is not None else _LONG_AGO
