"""Who looks at the dashboard: from a key to a cookie, and from a cookie back to a principal."""

from datetime import datetime

from starlette.requests import Request

from gateway.dashboard.cookies import COOKIE, LIFETIME, Session, SessionSigner
from gateway.database import Sessions
from gateway.domain.keys.keyring import Keyring
from gateway.domain.keys.queries import live_keys
from gateway.domain.keys.secret import lookup_prefix
from gateway.domain.principal import Principal


async def log_in(keyring: Keyring, key: str, *, now: datetime) -> Session:
    """Raises Unauthenticated for a wrong key, Forbidden for a suspended tenant's."""
    principal = await keyring.authenticate_key(key)
    return Session(key_id=principal.key_id, prefix=lookup_prefix(key), expires_at=now + LIFETIME)


def session_of(request: Request, signer: SessionSigner, *, now: datetime) -> Session | None:
    cookie = request.cookies.get(COOKIE)
    return signer.unseal(cookie, now=now) if cookie else None


async def principal_of(sessions: Sessions, visit: Session) -> Principal | None:
    """Asked anew for each page, so that a revoked key or a suspended tenant ends the visit; None then."""
    async with sessions() as session:
        found = (await session.execute(live_keys([visit.prefix]))).all()
    for key, tenant in found:
        if key.id == visit.key_id and tenant.suspended_at is None:
            return Principal(tenant.id, tenant.name, key.id, tenant.tier, frozenset(key.scopes))
    return None
