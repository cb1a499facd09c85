"""Renders every error in OpenAI's format, and requires the key for every path not listed as public."""

import hmac
import ipaddress
import logging
from collections.abc import Callable, Sequence
from urllib.parse import urlsplit

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from protocol.errors import ErrorType, ProtocolError, encode_error
from protocol.load import LOAD_HEADER
from worker.server.request_body import BodyTooLarge, NotJson

PUBLIC_PATHS = frozenset({"/health", "/ready"})
_LOAD_HEADER = LOAD_HEADER.encode()
METRICS_PATH = "/metrics"
_FORWARDED = frozenset({b"forwarded", b"x-forwarded-for", b"x-real-ip"})
log = logging.getLogger("tiergate.server")


class BadKey(ProtocolError):
    status = 401
    type: ErrorType = "authentication_error"

    def __init__(self) -> None:
        super().__init__("send `Authorization: Bearer <the worker key>`", code="invalid_api_key")


class NotHere(ProtocolError):
    status = 403
    type: ErrorType = "permission_error"

    def __init__(self) -> None:
        super().__init__(
            "/metrics is open on the worker's own machine only; set TIERGATE_WORKER_METRICS_KEY and send it",
            code="permission_denied",
        )


class OtherOrigin(ProtocolError):
    status = 403
    type: ErrorType = "permission_error"

    def __init__(self, origin: str) -> None:
        super().__init__(
            f"a page of {origin[:200]!r} may not use a worker without a key; start it with --api-key",
            code="permission_denied",
        )


class KeyGate:
    """Lets a request through if it presents the key.

    Without a configured key every request passes, except one that a browser sends for another machine's page, whose
    host name may have been rebound to this machine's address. `/metrics` accepts its own key or the worker's; with
    neither configured, it answers this machine only. Answers carry the worker's load.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        keys: Sequence[str],
        metrics_key: str | None,
        load: Callable[[], bytes],
        is_unix: bool = False,
    ) -> None:
        """is_unix: all callers come over a Unix socket and have no address."""
        self._is_unix = is_unix
        self._app = app
        self._load = load
        self._keys = [_bearer(key) for key in keys]
        self._metrics_keys = [*self._keys, *([] if metrics_key is None else [_bearer(metrics_key)])]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            self._check(scope)
        except ProtocolError as error:
            await error_response(error)(scope, receive, send)
            return
        await self._app(scope, receive, self._telling_load(send))

    def _telling_load(self, send: Send) -> Send:
        async def tell(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], (_LOAD_HEADER, self._load())]
            await send(message)

        return tell

    def _check(self, scope: Scope) -> None:
        """Raises BadKey, NotHere or OtherOrigin."""
        if scope["path"] in PUBLIC_PATHS:
            return
        expected = self._metrics_keys if scope["path"] == METRICS_PATH else self._keys
        if not expected:
            if scope["path"] == METRICS_PATH and not _is_local(scope, is_unix=self._is_unix):
                raise NotHere()
            origin = dict(scope["headers"]).get(b"origin", b"").decode("latin-1")
            if origin and not _is_loopback(_host_of(origin)):
                raise OtherOrigin(origin)
            return
        sent = dict(scope["headers"]).get(b"authorization", b"")
        # Compares all the keys, so that timing reveals nothing.
        if not sum(hmac.compare_digest(sent, key) for key in expected):
            raise BadKey()


def _bearer(key: str) -> bytes:
    return f"Bearer {key}".encode()


def _is_local(scope: Scope, *, is_unix: bool) -> bool:
    """Forwarded requests are never local: those of a proxy on this machine come from loopback, too."""
    if {name for name, _ in scope["headers"]} & _FORWARDED:
        return False
    return is_unix or _is_loopback((scope["client"] or ("",))[0])


def _host_of(origin: str) -> str:
    try:
        return urlsplit(origin).hostname or ""
    except ValueError:
        return ""


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback


def error_response(error: ProtocolError) -> Response:
    headers = {}
    retry_after_s = getattr(error, "retry_after_s", None)
    if retry_after_s is not None:
        headers["retry-after"] = str(max(1, round(retry_after_s)))
    if isinstance(error, BodyTooLarge | NotJson):
        # The rest of the body is still on its way and must not be read as the next request.
        headers["connection"] = "close"
    return _json(error.body(), error.status, headers)


async def on_protocol_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ProtocolError)
    return error_response(error)


async def on_http_error(request: Request, error: Exception) -> Response:
    """Starlette's own errors: an unknown path or a wrong method."""
    assert isinstance(error, HTTPException)
    method, path = request.method, request.url.path
    if error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "")
        message = f"{method} is not allowed for {path}; use {allowed}"
        return _json(encode_error(message, type="invalid_request_error", code="method_not_allowed"), 405, error.headers)
    message = f"{method} {path} is not served by this worker"
    return _json(encode_error(message, type="not_found_error", code="unsupported_endpoint"), 404)


async def on_bug(request: Request, error: Exception) -> Response:
    """A bug of ours; the server logs the traceback and closes the connection.

    The client must be told of the close, or its next request on the connection, maybe another tenant's, breaks off.
    """
    request.app.state.replica.metrics.count_failed("internal_error")
    body = encode_error("an internal error; it was logged", type="server_error", code="internal_error")
    return _json(body, 500, {"connection": "close"})


def _json(body: bytes, status: int, headers: object = None) -> Response:
    extra = dict(headers) if isinstance(headers, dict) else {}
    return Response(body, status, headers=extra, media_type="application/json")
