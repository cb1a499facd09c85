"""`Idempotency-Key` on POSTs outside the data plane: a repeated request is not carried out, its first answer is
replayed."""

from collections.abc import Callable

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.http.errors import GatewayError, InvalidRequest
from gateway.http.rendering import error_response
from gateway.idempotency.kept import KeptAnswer
from gateway.idempotency.store import HEADER, MAX_BODY_BYTES, Claim, check_key, fingerprint_of
from gateway.services import Services, authenticated

_KEY = HEADER.lower().encode()
_AREAS = ("/admin/v1/", "/v1/")
_NEW_IN_EACH = frozenset({"x-request-id", "content-length"})


class IdempotentPosts:
    """Belongs inside the limit on body sizes, because it reads a request with the header whole before its route."""

    def __init__(self, app: ASGIApp, *, services: Services, takes_form: Callable[[Scope], bool]) -> None:
        self._app = app
        self._services = services
        self._takes_form = takes_form

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST" or not scope["path"].startswith(_AREAS):
            return await self._app(scope, receive, send)
        headers = dict(scope["headers"])
        if _KEY not in headers:
            return await self._app(scope, receive, send)
        try:
            if self._takes_form(scope):
                raise InvalidRequest(f"{HEADER} is not taken for uploads; leave it out", param=HEADER)
            key = check_key(headers[_KEY])
            principal = await authenticated(Request(scope), self._services)
            body = await _whole(receive)
            if body is None:
                return
            # The fingerprint covers the API key, too: an answer may hold what another key may not see.
            target = (scope["path"].encode(), scope["query_string"], principal.key_id.bytes)
            fingerprint = fingerprint_of((*target, body))
            found = await self._services.answers.claim(principal.tenant_text, f"admin {key}", fingerprint)
        except GatewayError as error:
            return await error_response(error)(scope, receive, send)
        if isinstance(found, KeptAnswer):
            return await _tell(found, send)
        await self._carry_out(found, body, scope, receive, send)

    async def _carry_out(self, claim: Claim, body: bytes, scope: Scope, receive: Receive, send: Send) -> None:
        told: list[Message] = []
        given = iter([{"type": "http.request", "body": body, "more_body": False}])

        async def receive_again() -> Message:
            return next(given, None) or await receive()

        async def collect(message: Message) -> None:
            told.append(message)

        try:
            await self._app(scope, receive_again, collect)
            answer = _joined(told)
            if 200 <= answer.status < 300:
                await self._services.answers.keep(claim, answer if len(answer.body) <= MAX_BODY_BYTES else None)
        finally:
            self._services.answers.free_soon(claim)
        for message in told:
            await send(message)


async def _whole(receive: Receive) -> bytes | None:
    """The whole body; None if the client left before its end."""
    parts, more = [], True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        parts.append(message.get("body", b""))
        more = message.get("more_body", False)
    return b"".join(parts)


def _joined(told: list[Message]) -> KeptAnswer:
    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in told[0].get("headers", ())}
    return KeptAnswer(
        told[0]["status"],
        {name: value for name, value in headers.items() if name not in _NEW_IN_EACH},
        b"".join(message.get("body", b"") for message in told[1:]),
    )


async def _tell(answer: KeptAnswer, send: Send) -> None:
    headers = answer.headers | {"idempotent-replayed": "true", "content-length": str(len(answer.body))}
    lines = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": answer.status, "headers": lines})
    await send({"type": "http.response.body", "body": answer.body})
