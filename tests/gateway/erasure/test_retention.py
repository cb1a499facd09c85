from datetime import timedelta
from uuid import uuid4

from sqlalchemy import select

from gateway.database import Sessions, open_sessions
from gateway.domain.audit.models import AuditEntry
from gateway.domain.audit.verification import verify
from gateway.domain.keys.service import make_admin_key
from gateway.domain.tenants.service import create_tenant
from gateway.erasure.retention import Retention
from gateway.peppers import Peppers
from tests.gateway.domain.conftest import NOW, PEPPER, postgres_url, sessions

__all__ = ["postgres_url", "sessions"]


async def test_contents_of_audit_rows_go_when_their_time_is_over_and_the_log_holds(sessions: Sessions) -> None:
    url = sessions.kw["bind"].url.render_as_string(hide_password=False)
    async with open_sessions(url, peppers=Peppers(PEPPER)) as opened:
        await make_admin_key(opened, name="old", pepper=PEPPER, now=NOW)
        names = [f"{age}-{uuid4().hex}" for age in ("old", "new")]
        for name, days in zip(names, (0, 30), strict=True):
            await create_tenant(opened, None, name=name, tier="free", now=NOW + timedelta(days=days))
        keeping = Retention(opened, audit_contents_days=7, batches_days=7, holder="here")
        assert (await keeping.tidy(now=NOW + timedelta(days=31)))[0] >= 2
        assert (await keeping.tidy(now=NOW + timedelta(days=31)))[0] == 0
        async with opened() as session:
            kept = [(row.after or {}).get("name") for row in await session.scalars(select(AuditEntry))]
        assert names[1] in kept and names[0] not in kept
        assert (await verify(opened, peppers=Peppers(PEPPER))).num_erased >= 2
