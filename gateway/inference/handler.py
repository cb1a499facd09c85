"""`POST /v1/chat/completions` and `/v1/completions`: the one way of a request, step by step."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from starlette.types import Receive, Scope, Send

from gateway.clock import utc_now
from gateway.http.errors import Forbidden, GatewayError, LimitReached
from gateway.http.rendering import error_body, error_event, error_headers, error_status
from gateway.inference.accounts import Accounts, NotDurable
from gateway.inference.exchange import ClientGone, Exchange
from gateway.inference.measure import Measured, measure
from gateway.inference.route import Attempt, send_somewhere
from gateway.inference.stream import Relay
from gateway.inference.usage_record import UsageRecord
from gateway.inference.validate import Accepted, Asked, client_request_id, validate
from gateway.limits.reservation import Admission, Reservation
from gateway.services import Services
from protocol.errors import ProtocolError
from protocol.ids import new_id

_log = logging.getLogger(__name__)
T = TypeVar("T")


class CompletionsEndpoint:
    """An ASGI application of its own: FastAPI's machinery has no place on the hot path."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await respond(self._services, Exchange(scope, receive, send), validate, complete)


async def respond(
    services: Services,
    exchange: Exchange,
    validate: Callable[[Exchange, bytes], T],
    complete: Callable[[Services, Exchange, Accepted[T]], Awaitable[None]],
) -> None:
    """There is an answer in any case, and it is counted."""
    metrics = services.metrics
    with metrics.in_flight.track_inprogress():
        await _answering_errors(exchange, _serve(services, exchange, validate, complete))
    # 499, as nginx calls it: the client left before there was an answer.
    metrics.requests.labels(str(exchange.status or 499), *exchange.labels).inc()


async def _serve(
    services: Services,
    exchange: Exchange,
    validate: Callable[[Exchange, bytes], T],
    complete: Callable[[Services, Exchange, Accepted[T]], Awaitable[None]],
) -> None:
    asked = await accept(services, exchange, validate)
    await _while_connected(exchange, _answering_errors(exchange, complete(services, exchange, asked)))


async def accept(services: Services, exchange: Exchange, validate: Callable[[Exchange, bytes], T]) -> Accepted[T]:
    """Authenticate and validate."""
    received_at, received_monotonic_s = utc_now(), time.monotonic()
    request_id = str(new_id(received_at))
    exchange.extra_headers["x-request-id"] = request_id
    principal = await services.keyring.authenticate(exchange.headers.get("authorization"))
    principal.require("inference")
    body = await exchange.read_body(services.settings.max_body_bytes)
    catalog = services.catalog.current
    tier = catalog.tiers.get(principal.tier)
    if tier is None:
        raise Forbidden(f"the tier {principal.tier!r} is gone; ask the platform's operator")
    return Accepted(
        request_id=request_id,
        client_request_id=client_request_id(exchange),
        path=exchange.path,
        principal=principal,
        tier=tier,
        catalog=catalog,
        request=validate(exchange, body),
        received_at=received_at,
        received_monotonic_s=received_monotonic_s,
    )


async def complete(services: Services, exchange: Exchange, asked: Asked) -> None:
    measured = await measure(asked, services.registry.fleet, services.bundles)
    await carry_out(
        services, exchange, asked, measured, lambda record, accounts: Relay(services, exchange, asked, record, accounts)
    )


async def carry_out(
    services: Services,
    exchange: Exchange,
    asked: Accepted[Any],
    measured: Measured,
    make_relay: Callable[[UsageRecord, Accounts], Attempt],
) -> None:
    """Admit, open, route and stream; close and settle before the last byte, whatever happens."""
    reservation = await admit(services, asked, measured)
    exchange.extra_headers |= reservation.standing.headers(asked.tier)
    record = UsageRecord(asked, measured, reservation)
    accounts = Accounts(services.outbox, services.limiter, services.metrics, record)
    try:
        accounts.open()
        await send_somewhere(services, record, make_relay(record, accounts))
    except Exception:
        with contextlib.suppress(NotDurable):
            await accounts.close("error")
        raise
    finally:
        accounts.close_soon("cancelled")
        exchange.note_labels(pool=record.pool, tier=asked.tier.name)


async def admit(services: Services, asked: Accepted[Any], measured: Measured) -> Reservation:
    admission = Admission(
        request_id=asked.request_id,
        tenant_id=asked.principal.tenant_id,
        tier=asked.tier,
        tokens=measured.tokens,
        cost_nanousd=measured.dearest_nanousd,
        now=asked.received_at,
    )
    try:
        return await services.limiter.admit(admission)
    except LimitReached as error:
        services.metrics.refusals.labels(str(error.code), asked.tier.name).inc()
        raise


async def _answering_errors(exchange: Exchange, work: Awaitable[None]) -> None:
    """Whatever fails becomes an answer, or, once the answer has begun, its last event."""
    try:
        await work
    except ClientGone:
        return
    except Exception as error:
        if not isinstance(error, GatewayError | ProtocolError):
            _log.exception("request %s failed", exchange.extra_headers.get("x-request-id"))
        if exchange.is_started:
            await exchange.finish(error_event(error))
        else:
            await exchange.answer(error_status(error), error_headers(error), error_body(error))


async def _while_connected(exchange: Exchange, work: Awaitable[None]) -> None:
    """Cancel `work` when the client leaves."""
    try:
        async with asyncio.TaskGroup() as group:
            watcher = group.create_task(exchange.watch())
            await work
            watcher.cancel()
    except* ClientGone:
        pass
