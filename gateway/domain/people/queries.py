from datetime import datetime
from uuid import UUID

from sqlalchemy import Select, select

from gateway.domain.people.models import Person
from gateway.domain.tenants.models import Tenant
from gateway.domain.visits.models import Visit
from gateway.domain.visits.service import goes_on


def subjects_of(tenant_id: UUID) -> Select[str]:
    """The identity provider's subjects of a tenant's people."""
    return select(Person.subject).where(Person.tenant_id == tenant_id)


def visiting_person(person_id: UUID, visit_id: UUID, *, now: datetime) -> Select[Person, Tenant, Visit]:
    """Person, tenant and visit, if the visit goes on and the tenant is neither deleted nor suspended."""
    return (
        select(Person, Tenant, Visit)
        .join(Tenant, Tenant.id == Person.tenant_id)
        .join(Visit, Visit.person_id == Person.id)
        .where(
            Person.id == person_id,
            Visit.id == visit_id,
            goes_on(now),
            Tenant.deleted_at.is_(None),
            Tenant.suspended_at.is_(None),
        )
    )
