"""Templates, and the headers that isolate a page: scripts from our files only, nothing from elsewhere, no framing."""

from collections.abc import Mapping
from contextvars import ContextVar
from datetime import datetime
from functools import cache
from typing import Any
from zoneinfo import ZoneInfo

from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.responses import HTMLResponse, Response

from gateway.dashboard.assets import asset_url
from gateway.dashboard.numbers import (
    change,
    column_money,
    exact_money,
    full_count,
    milliseconds,
    money,
    per_million,
    percent,
    short_count,
)
from gateway.dashboard.zones import UTC_ZONE

_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; connect-src 'self'; style-src 'self'; "
    "img-src 'self' data:; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'",
    "Cache-Control": "no-store",
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
_zone: ContextVar[ZoneInfo] = ContextVar("zone", default=UTC_ZONE)
"""The zone of the page being rendered. A context variable, since macros do not see the page's values."""


def render(template: str, *, status: int = 200, headers: Mapping[str, str] | None = None, **values: Any) -> Response:
    """With a `visitor`, times are in the visitor's zone. With a `form`, the status is the form's."""
    form, visitor = values.get("form"), values.get("visitor")
    if form is not None:
        status = form.typed.status
    _zone.set(UTC_ZONE if visitor is None else visitor.zone)
    html = _environment().get_template(template).render(values)
    return HTMLResponse(html, status, {**_HEADERS, **(headers or {})})


def render_part(template: str, **values: Any) -> str:
    """A part of a page, for a script that inserts it."""
    return _environment().get_template(template).render(values)


def download(text: str, media_type: str, name: str) -> Response:
    headers = {"Cache-Control": "no-store", "Content-Disposition": f'attachment; filename="{name}"'}
    return Response(text, media_type=media_type, headers=headers | {"X-Content-Type-Options": "nosniff"})


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("gateway.dashboard"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        change=change,
        money=money,
        exact_money=exact_money,
        column_money=column_money,
        per_million=per_million,
        percent=percent,
        full_count=full_count,
        short_count=short_count,
        milliseconds=milliseconds,
        clock=_clock,
        full_time=_full_time,
        model_name=_model_name,
        version=_version,
    )
    environment.globals.update(zip=zip, zone_name=lambda: _zone.get().key, asset_url=asset_url)
    return environment


def _clock(moment: datetime) -> str:
    return f"{moment.astimezone(_zone.get()):%-d %b %H:%M:%S}"


def _full_time(moment: Any) -> str:
    """Includes the year, for times that may be long ago. A dash for None."""
    return f"{moment.astimezone(_zone.get()):%-d %b %Y, %H:%M}" if moment else "–"


def _model_name(model_version: str) -> str:
    return model_version.partition("@")[0]


def _version(model_version: str) -> str:
    """As much of the version of a model's files as it takes to tell two apart."""
    return model_version.partition("@")[2][:8]
