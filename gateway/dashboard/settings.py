"""The gateway's versions and settings, and the visitor's own visits, which can be ended from here."""

import platform
import re
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

from pydantic import SecretStr
from sqlalchemy import text
from starlette.requests import Request
from starlette.responses import Response

from gateway.clock import utc_now
from gateway.dashboard.forms import back_to, confirmation
from gateway.dashboard.pages import EVERYBODY, FormPage, Page
from gateway.dashboard.rendering import render
from gateway.dashboard.typed import Typed
from gateway.dashboard.visitors import Visitor
from gateway.domain.visits.service import end_other_visits, visits_of
from gateway.http.errors import Unavailable
from gateway.metering.statements import BoundQuery
from gateway.services import Services
from gateway.settings import ENV_PREFIX, GatewaySettings, PoolConfig

PATH = "/dashboard/settings"
_OF_KEY = (
    "Whoever is logged in with the same key elsewhere has to log in again. The key itself stays as it is: where it is "
    "in wrong hands, rotate or revoke it."
)
_OF_PERSON = (
    "Wherever you are logged in elsewhere you have to log in again. Your account at the identity provider stays as it "
    "is: where it is in wrong hands, change its password there."
)
_USER_INFO = re.compile(r"(?<=//)[^/@\s]*@")
_SECRET_FIELD = re.compile(r"([?&][^=&]*(?:pass|secret|token|key)[^=&]*=)[^&]*", re.IGNORECASE)


async def show_settings(request: Request, services: Services, visitor: Visitor) -> Response:
    now, is_operator = utc_now(), visitor.principal.is_platform_admin
    async with services.sessions() as session:
        visits = list(await session.scalars(visits_of(visitor.principal.key_id, now=now)))
    return render(
        "settings.html",
        visitor=visitor,
        visits=visits,
        versions=await _versions(services) if is_operator else {},
        settings=shown_settings(services.settings) if is_operator else [],
        now=now,
    )


async def ask_end_others(request: Request, services: Services, visitor: Visitor, typed: Typed) -> Response:
    return confirmation(
        visitor,
        typed,
        title="End all other visits?",
        text=_OF_PERSON if visitor.principal.person else _OF_KEY,
        button="End them",
        back=PATH,
        back_label="Back to the settings",
    )


async def end_others(request: Request, services: Services, visitor: Visitor, typed: Typed) -> Response:
    await end_other_visits(services.sessions, visitor.principal, visitor.visit_id, now=utc_now())
    return back_to(PATH, "ended")


def shown_settings(settings: GatewaySettings) -> list[tuple[str, str, bool]]:
    """(variable, value without secrets, whether it is the default)"""
    return [
        (f"{ENV_PREFIX}{name.upper()}", _shown(value), value == field.get_default(call_default_factory=True))
        for name, field in sorted(GatewaySettings.model_fields.items())
        for value in (getattr(settings, name),)
    ]


def _shown(value: Any) -> str:
    match value:
        case None | "" | () | {}:
            return "–"
        case SecretStr():
            return "set"
        case bool():
            return "yes" if value else "no"
        case tuple() | list():
            return ", ".join(map(_shown, value))
        case Mapping():
            return "; ".join(f"{name}: {_shown(each)}" for name, each in value.items())
        case PoolConfig():
            members = ", ".join(_shown(member.url) for member in value.members) or "those that register"
            return f"{value.model}, {members}"
        case _:
            return _SECRET_FIELD.sub(r"\1…", _USER_INFO.sub("…@", str(value)))


async def _versions(services: Services) -> dict[str, str]:
    async with services.sessions() as session:
        dialect = session.get_bind().dialect.name
        function = "sqlite_version()" if dialect == "sqlite" else "version()"
        database = str(await session.scalar(text(f"SELECT {function}")))
        revision = str(await session.scalar(text("SELECT version_num FROM alembic_version")))
    try:
        [row] = await services.usage.fetch(BoundQuery("SELECT version() AS version", {}))
        clickhouse = str(row["version"])
    except Unavailable:
        clickhouse = "does not answer"
    return {
        "tiergate": version("tiergate"),
        "Python": platform.python_version(),
        "Database": f"{dialect} {database}",
        "Revision of its tables": revision,
        "ClickHouse": clickhouse,
        "Limits": "local, Valkey is away" if services.limiter.is_local else "shared, in Valkey",
    }


PAGES = (
    Page("/settings", show_settings, who=EVERYBODY, label="Settings"),
    FormPage("/settings/end-others", ask_end_others, end_others, who=EVERYBODY),
)
