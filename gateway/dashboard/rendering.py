"""Templates, and the headers that keep a page to itself: no script, nothing from elsewhere, in nobody's frame."""

from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.responses import HTMLResponse, Response

from gateway.dashboard.numbers import full_count, milliseconds, money, short_count
from gateway.dashboard.page import model_name

_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; img-src 'self' data:; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'",
    "Cache-Control": "no-store",
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


def render(template: str, *, status: int = 200, headers: Mapping[str, str] | None = None, **values: Any) -> Response:
    html = _environment().get_template(template).render(values)
    return HTMLResponse(html, status, {**_HEADERS, **(headers or {})})


def stylesheet() -> Response:
    return Response(_css(), media_type="text/css", headers={"Cache-Control": "max-age=300"})


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
        money=money,
        full_count=full_count,
        short_count=short_count,
        milliseconds=milliseconds,
        clock=_clock,
        model_name=model_name,
        version=_version,
    )
    return environment


@cache
def _css() -> str:
    return (files("gateway.dashboard") / "static" / "style.css").read_text()


def _clock(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%-d %b %H:%M:%S}"


def _version(model_version: str) -> str:
    """Enough of the version of a model's files to tell two apart."""
    return model_version.partition("@")[2][:8]
