"""The fleet page's changes as server-sent events. All viewers of a process share one rendering of each state.

A stream is short, and the browser reconnects with its cookie. So the view ends when the session has ended or the
gateway is told to stop, without any code that watches for it.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from zoneinfo import ZoneInfo

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from gateway.clock import utc_now
from gateway.dashboard.fleet_view import view_fleet
from gateway.dashboard.rendering import render_part
from gateway.dashboard.sse import HEADERS, html_event
from gateway.dashboard.visitors import Visitor
from gateway.http.errors import Unavailable
from gateway.services import Services

PERIOD_S = 1.0
LIFETIME_S = 20.0
MAX_VIEWERS = 32


class LiveFleet:
    def __init__(self, services: Services) -> None:
        self._services = services
        self._rendered_at_s = float("-inf")
        self._html = ""
        self.num_viewers = 0

    def html(self) -> str:
        """The pools' HTML, at most PERIOD_S old."""
        now_s = time.monotonic()
        if now_s - self._rendered_at_s >= PERIOD_S:
            self._html = render_part("fleet_pools.html", pools=view_fleet(self._services))
            self._rendered_at_s = now_s
        return self._html

    async def events(self, zone: ZoneInfo) -> AsyncIterator[bytes]:
        """Events: `fleet` with the pools' HTML when it changed, and `seen` with the time of each check."""
        self.num_viewers += 1
        try:
            ends_at_s, sent = time.monotonic() + LIFETIME_S, ""
            yield b"retry: 1000\n\n"
            while time.monotonic() < ends_at_s and not self._services.is_draining():
                html = self.html()
                if html != sent:
                    sent = html
                    yield html_event("fleet", html)
                yield html_event("seen", f"{utc_now().astimezone(zone):%-d %b %H:%M:%S}")
                await asyncio.sleep(PERIOD_S)
        finally:
            self.num_viewers -= 1


def live_fleet(request: Request, services: Services) -> LiveFleet:
    """One LiveFleet per gateway process."""
    state = request.app.state
    if not hasattr(state, "live_fleet"):
        state.live_fleet = LiveFleet(services)
    live: LiveFleet = state.live_fleet
    return live


async def stream_fleet(request: Request, services: Services, visitor: Visitor) -> Response:
    live = live_fleet(request, services)
    if live.num_viewers >= MAX_VIEWERS:
        raise Unavailable(f"{MAX_VIEWERS} pages show the fleet live already; refresh yours by hand", retry_after_s=30)
    return StreamingResponse(live.events(visitor.zone), headers=HEADERS)
