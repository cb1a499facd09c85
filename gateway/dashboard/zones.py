"""The time zone in which a visitor reads times: from the URL, else from a cookie, else UTC."""

from datetime import datetime
from functools import cache
from zoneinfo import ZoneInfo, available_timezones

from starlette.requests import Request
from starlette.responses import Response

from gateway.http.errors import InvalidRequest

COOKIE = "tiergate_zone"
UTC_ZONE = ZoneInfo("UTC")
_YEAR_S = 365 * 86400


@cache
def zone_names() -> tuple[str, ...]:
    """UTC and the zones of places, without the names that are kept for old software."""
    return ("UTC", *sorted(name for name in available_timezones() if "/" in name and not name.startswith("Etc/")))


def zone_named(name: str) -> ZoneInfo | None:
    return ZoneInfo(name) if name in zone_names() else None


def zone_of(request: Request) -> ZoneInfo:
    asked = (request.query_params.get("tz", ""), request.cookies.get(COOKIE, ""))
    return next((zone for name in asked if (zone := zone_named(name))), UTC_ZONE)


def has_chosen_zone(request: Request) -> bool:
    return zone_named(request.cookies.get(COOKIE, "")) is not None


def keep_zone(response: Response, zone: ZoneInfo, *, is_secure: bool) -> None:
    response.set_cookie(
        COOKIE, zone.key, max_age=_YEAR_S, path="/dashboard", httponly=True, samesite="strict", secure=is_secure
    )


def typed_moment(text: str, zone: ZoneInfo, *, param: str) -> str | None:
    """A typed time as ISO 8601 for the API, in `zone` unless the text names one. None for "".

    Raises InvalidRequest.
    """
    if not text:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidRequest("write a time such as 2026-01-31T12:00", param=param) from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=zone)).isoformat()
