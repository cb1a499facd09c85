"""CORS for other sites' pages: off unless `cors_origins` names the sites. Keys are sent in a header, never a cookie."""

from collections.abc import Collection

from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp

_MAX_AGE_S = 600


def allow_origins(app: ASGIApp, origins: Collection[str], *, exposed: Collection[str]) -> ASGIApp:
    """`app` wrapped to answer preflight requests and expose the `exposed` headers; `app` itself without origins."""
    if not origins:
        return app
    return CORSMiddleware(
        app,
        allow_origins=origins,
        allow_methods=("GET", "POST", "PUT", "PATCH", "DELETE"),
        # Allow any header: SDKs in browsers send a dozen of their own.
        allow_headers=("*",),
        expose_headers=exposed,
        max_age=_MAX_AGE_S,
    )
