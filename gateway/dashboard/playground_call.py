"""A chat completion through the platform's ordinary path, in this process and under the visitor's key.

It is limited, routed, metered and billed as if that key had sent it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any

from starlette.types import Message, Receive

from gateway.domain.principal import Principal
from gateway.http.answer import ON_LEAVE, WHOLE_BODY
from gateway.inference.accounts import UsageSink
from gateway.inference.exchange import Exchange
from gateway.inference.handler import COMPLETION, respond
from gateway.inference.validate import CHAT_PATH
from gateway.metering.outbox import OpenRequest
from gateway.services import Services
from protocol.usage import UsageEvent

CLIENT_REQUEST_ID = "console-playground"
"""The client request id by which the playground's requests are found."""
Hear = Callable[[bytes], Awaitable[None]]


async def _nothing(_chunk: bytes) -> None:
    pass


class Call:
    """`run` once. Then `body` is the answer, or the refusal, that was sent whole, and `event` the metered usage."""

    def __init__(self, principal: Principal, body: bytes, *, client: Any, hear: Hear = _nothing) -> None:
        """hear: receives the parts of a stream. client: the visitor's address, in ASGI's form."""
        self._principal = principal
        self._request = body
        self._hear = hear
        headers = [(b"content-type", b"application/json"), (b"x-client-request-id", CLIENT_REQUEST_ID.encode())]
        self._scope: dict[str, Any] = {
            "type": "http",
            "method": "POST",
            "path": CHAT_PATH,
            "headers": headers,
            "client": client,
        }
        self._is_left = False
        self._usage: _Noted | None = None
        self.body = b""

    @property
    def event(self) -> UsageEvent | None:
        """None if the request was refused before admission."""
        return self._usage.event if self._usage else None

    async def run(self, services: Services) -> None:
        if self._is_left:
            return
        exchange = Exchange(self._scope, self._receive, self._take)
        exchange.principal = self._principal
        exchange.usage = self._usage = _Noted(services.outbox)
        await respond(services, exchange, COMPLETION)

    def leave(self) -> None:
        """To be called when the visitor has left."""
        self._is_left = True
        if ON_LEAVE in self._scope:
            self._scope[ON_LEAVE]()

    async def _receive(self) -> Message:
        return {"type": "http.request", "body": self._request, "more_body": False}

    async def _take(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.body = message.get(WHOLE_BODY, b"")
        elif message["body"]:
            await self._hear(message["body"])


async def while_connected(receive: Receive, calls: Sequence[Call], work: Coroutine[Any, Any, None]) -> None:
    """Run `work`, which runs the calls, to its end. The calls are told when the client leaves."""
    async with asyncio.TaskGroup() as group:
        leaving = group.create_task(_tell_leaving(receive, calls))
        await group.create_task(work)
        leaving.cancel()


async def _tell_leaving(receive: Receive, calls: Sequence[Call]) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    for call in calls:
        call.leave()


class _Noted:
    """Passes everything on to the outbox, and keeps the usage event."""

    def __init__(self, outbox: UsageSink) -> None:
        self._outbox = outbox
        self.event: UsageEvent | None = None

    @property
    def failure(self) -> str | None:
        return self._outbox.failure

    def open(self, request: OpenRequest) -> None:
        self._outbox.open(request)

    def close(self, event: UsageEvent, *, is_correction: bool = False) -> "asyncio.Future[None]":
        self.event = event
        return self._outbox.close(event, is_correction=is_correction)
