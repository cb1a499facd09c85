"""Header checks that run before every route except completions, which check their headers themselves."""

from collections.abc import Callable, Sequence

from starlette.responses import Response
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.http.errors import GatewayError, UnsupportedMediaType
from gateway.http.headers import Headers, check_json, read_headers
from gateway.http.methods import allowed_methods
from gateway.http.proxies import Networks, client_address, is_within
from gateway.http.rendering import error_response
from gateway.log_context import note_address

_JSON_PATHS = ("/v1/", "/admin/")
_WITH_BODY = ("POST", "PUT", "PATCH")
_SCHEMES = ("http", "https")


class RequestPolicy:
    def __init__(
        self,
        app: ASGIApp,
        *,
        routes: Callable[[], Sequence[BaseRoute]],
        trusted_proxies: Networks,
        takes_form: Callable[[Scope], bool] = lambda _: False,
    ) -> None:
        """takes_form: whether the request is a file upload form that its route reads."""
        self._app = app
        self._takes_form = takes_form
        self._routes = routes
        self._trusted = trusted_proxies

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        try:
            headers = read_headers(scope["headers"])
            self._check_media_type(scope, headers)
        except GatewayError as error:
            return await error_response(error)(scope, receive, send)
        if scope["method"] == "OPTIONS" and (allowed := allowed_methods(self._routes(), scope)):
            return await Response(status_code=204, headers={"allow": ", ".join(allowed)})(scope, receive, send)
        if scope["method"] == "HEAD":
            # The server does not send the answer's body.
            scope = {**scope, "method": "GET"}
        if self._trusted and b"x-forwarded-for" in headers:
            scope = {**scope, **self._seen_by_proxies(scope, headers)}
        if scope["client"]:
            note_address(scope["client"][0])
        await self._app(scope, receive, send)

    def _check_media_type(self, scope: Scope, headers: Headers) -> None:
        if scope["method"] not in _WITH_BODY or not scope["path"].startswith(_JSON_PATHS) or self._takes_form(scope):
            return
        try:
            check_json(headers)
        except UnsupportedMediaType:
            # An unknown path or method is refused as such instead.
            if scope["method"] in allowed_methods(self._routes(), scope):
                raise

    def _seen_by_proxies(self, scope: Scope, headers: Headers) -> Scope:
        host, port = scope["client"] or ("", 0)
        lines = [value.decode("latin-1") for name, value in scope["headers"] if name == b"x-forwarded-for"]
        client = client_address(host, lines, self._trusted)
        scheme = headers.get(b"x-forwarded-proto", b"").decode("latin-1").strip().lower()
        is_told = scheme in _SCHEMES and is_within(host, self._trusted)
        return {"client": (client, port if client == host else 0), "scheme": scheme if is_told else scope["scheme"]}
