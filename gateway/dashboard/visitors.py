"""Visitors of the dashboard: from a key to a cookie, and from a cookie back to a key's or a person's principal."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple
from uuid import UUID
from zoneinfo import ZoneInfo

from starlette.requests import Request

from gateway.dashboard.cookies import COOKIE, LIFETIME, Session, SessionSigner
from gateway.dashboard.links import Query
from gateway.dashboard.names import Names, names_for
from gateway.dashboard.notices import NOTICES
from gateway.dashboard.zones import has_chosen_zone, zone_of
from gateway.database import Sessions
from gateway.domain.keys.fields import KeyFields
from gateway.domain.keys.keyring import Keyring
from gateway.domain.keys.queries import key_of
from gateway.domain.keys.secret import lookup_prefix
from gateway.domain.people.service import visiting_principal
from gateway.domain.principal import SEES_SPENDING, Principal
from gateway.domain.visits.service import begin_visit, is_on
from gateway.http.errors import Forbidden, NotFound


class Place(NamedTuple):
    path: str
    label: str


@dataclass(frozen=True)
class Visitor:
    principal: Principal
    names: Names
    visit_id: UUID
    form_tokens: tuple[str, ...]
    path: str
    """The path of the page that is shown."""
    here: str
    """The same path with its query, to come back to."""
    zone: ZoneInfo
    """The zone in which times are shown."""
    has_chosen_zone: bool
    notice: str
    """A message about what was just done, shown once."""
    places: Sequence[Place]
    """The navigation."""

    @property
    def form_token(self) -> str:
        return self.form_tokens[0]

    @property
    def is_admin(self) -> bool:
        """Whether the visitor administers the tenant, or the platform."""
        return self.principal.is_platform_admin or "tenant-admin" in self.principal.scopes

    def asked(self, request: Request) -> dict[str, str]:
        return _asked(request, self.principal)

    def shown_tenant(self, asked: str) -> str | None:
        """The tenant to show; None: all tenants. A tenant's own visitors see only their tenant, whatever the URL says.
        Raises NotFound."""
        if not self.principal.is_platform_admin:
            return self.principal.tenant_text
        return self.tenant_called(asked) if asked else None

    def tenant_called(self, asked: str) -> str:
        """A tenant's id, by its id or its name. Raises NotFound."""
        if asked in self.names.tenants:
            return asked
        found = next((tenant_id for tenant_id, name in self.names.tenants.items() if name == asked), None)
        if found is None:
            raise NotFound(f"there is no tenant {asked[:80]!r}; write its whole name, or its id")
        return found


async def log_in(
    keyring: Keyring, sessions: Sessions, key: str, *, address: str, browser: str, now: datetime
) -> Session:
    """Raises Unauthenticated for a wrong key, and Forbidden for a suspended tenant's key or one without access."""
    principal = await keyring.authenticate_key(key)
    principal.require_address(address)
    principal.require(*SEES_SPENDING)
    expires_at = now + LIFETIME
    visit_id = await begin_visit(
        sessions, principal.key_id, address=address, browser=browser, expires_at=expires_at, now=now
    )
    return Session(principal.key_id, lookup_prefix(key), expires_at, visit_id)


def session_of(request: Request, signer: SessionSigner, *, now: datetime) -> Session | None:
    cookie = request.cookies.get(COOKIE)
    return signer.unseal(cookie, now=now) if cookie else None


async def visitor_of(
    request: Request,
    sessions: Sessions,
    signer: SessionSigner,
    *,
    places: Callable[[frozenset[str]], Sequence[Place]],
    now: datetime,
) -> Visitor | None:
    """None if nobody is logged in. places: the navigation for some scopes."""
    visit = session_of(request, signer, now=now)
    principal = await principal_of(sessions, visit, address=address_of(request), now=now) if visit else None
    if visit is None or principal is None:
        return None
    return Visitor(
        principal,
        await names_for(sessions, principal),
        visit.visit_id,
        signer.form_tokens(visit),
        request.url.path,
        Query(request.url.path, _asked(request, principal)).url(notice="", tz=""),
        zone=zone_of(request),
        has_chosen_zone=has_chosen_zone(request),
        notice=NOTICES.get(request.query_params.get("notice", ""), ""),
        places=places(principal.scopes),
    )


async def principal_of(sessions: Sessions, visit: Session, *, address: str, now: datetime) -> Principal | None:
    """Asked anew for each page. None once the key is revoked, the tenant suspended, or the visit ended elsewhere."""
    if visit.is_persons:
        return await visiting_principal(sessions, visit.holder_id, visit.visit_id, now=now)
    async with sessions() as session:
        query = key_of(visit.holder_id, visit.prefix, now=now).where(is_on(visit.visit_id, visit.holder_id, now=now))
        row = (await session.execute(query)).first()
    if row is None:
        return None
    found = KeyFields._make(row)
    principal = found.principal()
    try:
        principal.require_address(address)
        principal.require(*SEES_SPENDING)
    except Forbidden:
        return None
    return principal if found.suspended_at is None else None


def address_of(request: Request) -> str:
    return request.client.host if request.client else ""


def _asked(request: Request, principal: Principal) -> dict[str, str]:
    """The URL's query, without the tenant, which only a platform administrator may choose."""
    return {
        name: value for name, value in request.query_params.items() if name != "tenant" or principal.is_platform_admin
    }
