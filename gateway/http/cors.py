"""Other sites' pages in browsers: off unless `cors_origins` names them. Keys travel in a header, never in a cookie."""

from collections.abc import Collection

from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp

_MAX_AGE_S = 600


def allow_origins(app: ASGIApp, origins: Collection[str], *, exposed: Collection[str]) -> ASGIApp:
    """`app`, answering preflights and naming `exposed` headers; itself where no origin is named."""
    if not origins:
        return app
    return CORSMiddleware(
        app,
        allow_origins=origins,
        allow_methods=("GET", "POST", "PUT", "PATCH", "DELETE"),
        # Whatever is asked for: SDKs in browsers send a dozen headers of their own.
        allow_headers=("*",),
        expose_headers=exposed,
        max_age=_MAX_AGE_S,
    )
