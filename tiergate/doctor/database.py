"""Checks the relational database: reachable, at our revision, clock in step, with an admin key, and of this pepper."""

from datetime import datetime

from alembic.script import ScriptDirectory
from sqlalchemy import func, select, text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncSession

from gateway.database import Sessions, check_exists, open_sessions
from gateway.domain.audit.chain import is_sealed
from gateway.domain.audit.models import AuditHead
from gateway.domain.keys.queries import usable_admin_keys
from gateway.domain.peppers.standing import missing_told, num_under, standing_of
from gateway.settings import GatewaySettings
from migrations.run import alembic_config
from tiergate.doctor.findings import Finding, error, one_line, warning

MAX_SKEW_S = 5.0


async def look_at_database(settings: GatewaySettings, now: datetime) -> list[Finding]:
    try:
        check_exists(settings.sql_url)
        async with open_sessions(settings.sql_url) as sessions:
            found = await _revision(sessions, settings)
            if not any(each.severity == "error" for each in found):
                async with sessions() as session:
                    found += [*await _rows(session, settings, now), *await _clock(session, now)]
            return found
    except (SQLAlchemyError, OSError, TimeoutError) as problem:
        todo = "start it, or correct TIERGATE_DATABASE_URL; `tiergate migrate` makes a SQLite file"
        return [error("database-away", f"the database cannot be used: {one_line(problem)}", todo)]


async def _revision(sessions: Sessions, settings: GatewaySettings) -> list[Finding]:
    script = ScriptDirectory.from_config(alembic_config(settings.sql_url))
    known, head = {each.revision for each in script.walk_revisions()}, script.get_current_head()
    try:
        async with sessions() as session:
            current = await session.scalar(text("SELECT version_num FROM alembic_version"))
    except SQLAlchemyError as problem:
        if "alembic_version" not in str(problem):
            raise
        current = None
    found = []
    if current not in known and current is not None:
        todo = "run the version that migrated it, or a newer one"
        found.append(error("database-newer", f"the database is at revision {current}, which this version lacks", todo))
    elif current != head:
        what = (
            f"the database is at revision {current}, this version needs {head}" if current else "the database is empty"
        )
        found.append(error("migrations-behind", what, "tiergate migrate"))
    if settings.processes > 1 and make_url(settings.sql_url).get_backend_name() == "sqlite":
        todo = "use PostgreSQL, or TIERGATE_PROCESSES=1"
        found.append(warning("sqlite-shared", f"{settings.processes} processes share one SQLite file", todo))
    return found


async def _rows(session: AsyncSession, settings: GatewaySettings, now: datetime) -> list[Finding]:
    found = []
    if await session.scalar(usable_admin_keys().limit(1)) is None:
        found.append(error("no-admin", "no key may administer the platform", "tiergate admin-key"))
    head = await session.scalar(select(AuditHead))
    if head is None or (
        head.seal is not None and not is_sealed(head.seal, head.num_rows, head.hash, peppers=settings.peppers)
    ):
        todo = "set the TIERGATE_KEY_PEPPER that keys were made with; if this is it, run `tiergate audit verify`"
        what = "the pepper is not the one of this database, so that no key works, or the audit log was altered"
        return [*found, error("pepper-differs", what, todo)]
    standing = await standing_of(session, settings.peppers, now=now)
    if num_under(standing, "unknown"):
        todo = "name that pepper in TIERGATE_OLD_KEY_PEPPERS until `tiergate pepper status` counts nothing under it"
        found.append(error("pepper-removed", missing_told(standing), todo))
    return found


async def _clock(session: AsyncSession, now: datetime) -> list[Finding]:
    if session.get_bind().dialect.name != "postgresql":
        return []
    there = await session.scalar(select(func.clock_timestamp()))
    skew_s = abs((there - now).total_seconds()) if isinstance(there, datetime) else 0.0
    if skew_s <= MAX_SKEW_S:
        return []
    return [error("clock", f"PostgreSQL's clock and ours differ by {skew_s:.0f} s", "run NTP on both machines")]
