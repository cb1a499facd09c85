"""`/`: redirects browsers to the console."""

from starlette.requests import Request
from starlette.responses import RedirectResponse

from gateway.http.errors import NotFound


async def front_page(request: Request) -> RedirectResponse:
    if "text/html" not in request.headers.get("accept", ""):
        raise NotFound("there is nothing at /; the API is below /v1, the console at /dashboard")
    return RedirectResponse("/dashboard", status_code=307, headers={"vary": "accept"})
