"""`POST /v1/chat/completions` and `/v1/completions`: the path that every request takes, step by step."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, TypeVar

import msgspec
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.clock import ms_between, utc_now
from gateway.domain.principal import Principal
from gateway.http.errors import GatewayError, Unavailable
from gateway.http.rendering import error_body, error_code, error_event, error_headers, error_status
from gateway.inference.accounts import Accounts, NotDurable
from gateway.inference.admit import admit
from gateway.inference.cached.step import Caching, Keeper, caching_of, give_again
from gateway.inference.cached.use import use_of
from gateway.inference.embeddings.handler import EMBEDDING
from gateway.inference.exchange import ClientGone, Exchange
from gateway.inference.guardrails.step import send_guarded
from gateway.inference.measure import Measured, measure
from gateway.inference.operation import Operation
from gateway.inference.replay import IDEMPOTENCY_KEY, answered_before
from gateway.inference.responses.request import validate_response
from gateway.inference.responses.step import answer_response
from gateway.inference.route import send_somewhere
from gateway.inference.server_tools.rounds import RunRound, answer_in_rounds
from gateway.inference.service_tier import terms_of
from gateway.inference.session.step import in_session
from gateway.inference.stream import Relay
from gateway.inference.usage_record import UsageRecord
from gateway.inference.validate import Accepted, client_request_id, session_id_of, validate
from gateway.log_context import note_request, note_tenant
from gateway.services import Services
from protocol.errors import ProtocolError
from protocol.ids import new_request_id
from protocol.responses_api import ResponsesRequest

_log = logging.getLogger(__name__)
_access = logging.getLogger("gateway.access")
T = TypeVar("T")


LAST_WORD_S = 1.0
"""How long a client may take to read that its request has ended because the gateway stops."""
COMPLETION = Operation(validate, measure, Relay)
RESPONSE: Operation[Any] = Operation[Any](validate_response, measure, Relay)


def make_endpoint(services: Services, operation: Operation[Any]) -> ASGIApp:
    """A separate ASGI application, which keeps FastAPI's machinery off the hot path."""

    def endpoint(scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        return respond(services, Exchange(scope, receive, send), operation)

    return endpoint


async def respond(services: Services, exchange: Exchange, operation: Operation[T]) -> None:
    """Answer the request in any case, unless the client has left, and count it."""
    metrics = services.metrics
    exchange.cancel_on_leave()
    metrics.num_in_flight += 1
    if services.tracing is not None:
        exchange.trace = services.tracing.begin(exchange.path, exchange.headers)
    failure: str | None = None
    try:
        accepted = await accept(services, exchange, operation.validate)
        if IDEMPOTENCY_KEY in exchange.headers:
            if await answered_before(services.answers, exchange, accepted):
                return
            accepted = msgspec.structs.replace(accepted, is_repeatable=True)
        if accepted.session_id is None:
            await _answer(services, exchange, accepted, operation)
        else:
            async with in_session(services, exchange, accepted) as accepted_whole:  # type: ignore[arg-type]
                await _answer(services, exchange, accepted_whole, operation)
    except ClientGone:
        pass
    except asyncio.CancelledError:
        # If we cancelled the task ourselves because the client left, let it end normally.
        if not exchange.is_left:
            if not services.is_draining():
                raise
            failure = Unavailable.code
            metrics.count_error(Unavailable.status, failure, exchange.served_by[2])
            # A client that does not read must not hold up the exit.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LAST_WORD_S):
                    await _tell(exchange, _stopping())
    except Exception as error:
        failure = error_code(error) or "invalid_request"
        metrics.count_error(error_status(error), error_code(error), exchange.served_by[2])
        if not exchange.is_admitted:
            services.refusals.count(exchange.principal, error_code(error), error_status(error))
        await _tell(exchange, error)
    finally:
        exchange.forget_leaving()
        if exchange.copy is not None:
            exchange.copy.drop()
        exchange.end_preparation()
        metrics.num_in_flight -= 1
        # 499, as nginx calls it: the client left before there was an answer.
        metrics.count_request(exchange.status or 499, exchange.served_by)
        if exchange.trace is not None:
            exchange.trace.end(exchange.status or 499, failure)
        if _access.isEnabledFor(logging.DEBUG):
            _access.debug("%s %d %s", exchange.path, exchange.status or 499, " ".join(filter(None, exchange.served_by)))


async def _answer(services: Services, exchange: Exchange, accepted: Accepted[Any], operation: Operation[Any]) -> None:
    if isinstance(accepted.request, ResponsesRequest):
        await answer_response(services, exchange, accepted, _round_of(services, operation))
    elif getattr(accepted.request, "server_tools", None):
        # The steps below, once for each round.
        await answer_in_rounds(services, exchange, accepted, _round_of(services, operation))
    else:
        measured = await operation.measure(accepted, services)
        caching, use = None, use_of(exchange.headers, accepted)
        if use is not None:
            caching = await caching_of(services, accepted, use, measured, _round_of(services, EMBEDDING))
        await carry_out(services, exchange, accepted, measured, operation, caching)


async def accept(services: Services, exchange: Exchange, validate: Callable[[Exchange, bytes], T]) -> Accepted[T]:
    """Authenticate and validate. Under overload, a request whose body is still to come is refused before it is read."""
    received_at, received_monotonic_s = utc_now(), time.monotonic()
    request_id = new_request_id(received_at)
    exchange.extra_headers["x-request-id"] = request_id
    note_request(request_id)
    exchange.check_headers()
    principal = exchange.principal = await _authenticate(services, exchange)
    authenticate_ms = ms_between(received_monotonic_s, time.monotonic())
    catalog = services.catalog.current
    tier = catalog.tier_of(principal)
    exchange.served_by = ("", "", tier.name)
    if not exchange.has_body:
        services.overload.check(tier.priority)
    body = await exchange.read_body(services.settings.max_body_bytes)
    # Only now: a client that sends its body slowly costs us no work meanwhile.
    exchange.preparation = services.overload.begin(tier.priority)
    request = validate(exchange, body)
    return Accepted(
        request_id=request_id,
        client_request_id=client_request_id(exchange),
        path=exchange.path,
        principal=principal,
        tier=terms_of(tier, request),
        catalog=catalog,
        body=body,
        request=request,
        received_at=received_at,
        received_monotonic_s=received_monotonic_s,
        authenticate_ms=authenticate_ms,
        session_id=session_id_of(exchange),
    )


async def carry_out(
    services: Services,
    exchange: Exchange,
    accepted: Accepted[Any],
    measured: Measured,
    operation: Operation[Any],
    caching: Caching | None = None,
) -> UsageRecord:
    """Admit, open, check, route and stream; close and settle before the last byte, whatever happens."""
    reservation = await admit(services, accepted, measured)
    exchange.is_admitted = True
    exchange.extra_headers |= reservation.standing.headers(accepted.tier)
    record = UsageRecord(accepted, measured, reservation)
    record.trace = exchange.trace
    accounts = Accounts(exchange.usage or services.outbox, services.limiter, services.metrics, record)
    try:
        accounts.open()
        if caching is not None:
            caching.tell(exchange)
        if caching is not None and caching.found is None:
            exchange.listeners.append(Keeper(caching, exchange, record))
        if accepted.catalog.guardrails:
            send = partial(_send, services, record, accounts, operation, caching)
            await send_guarded(services, exchange, record, accounts, send)
        else:
            await _send(services, record, accounts, operation, caching, exchange)
    except Exception as error:
        record.note_error(error)
        if not isinstance(error, ClientGone):
            exchange.undo()
        with contextlib.suppress(NotDurable):
            await accounts.close("error")
        raise
    except asyncio.CancelledError:
        if services.is_draining() and not exchange.is_left:
            record.note_error(_stopping())
            exchange.undo()
            accounts.close_soon("error")
        raise
    finally:
        accounts.close_soon("cancelled")
        exchange.served_by = record.served_by
    return record


async def _send(
    services: Services,
    record: UsageRecord,
    accounts: Accounts,
    operation: Operation[Any],
    caching: Caching | None,
    taker: Exchange,
) -> None:
    """Send the answer to `taker`: the client, or the guardrails that check it first."""
    if caching is not None and caching.found is not None:
        await give_again(caching.found, taker, record, accounts)
    else:
        attempt = operation.make_attempt(services, taker, record, accounts)
        await send_somewhere(services, taker, record, attempt)


def _round_of(services: Services, operation: Operation[Any]) -> RunRound:
    async def run_round(exchange: Exchange, accepted: Accepted[Any]) -> UsageRecord:
        measured = await operation.measure(accepted, services)
        return await carry_out(services, exchange, accepted, measured, operation)

    return run_round


async def _authenticate(services: Services, exchange: Exchange) -> Principal:
    principal = exchange.principal or await _owner_of_key(services, exchange)
    note_tenant(principal.tenant_text)
    principal.require("inference")
    if principal.allowed_networks is not None:
        principal.require_address(exchange.client_address(services.settings.trusted_proxies))
    return principal


async def _owner_of_key(services: Services, exchange: Exchange) -> Principal:
    authorization = exchange.headers.get(b"authorization")
    principal = services.keyring.known(authorization or b"")
    if principal is None:
        services.overload.check_unknown()
        principal = await services.keyring.authenticate(authorization)
    return principal


def _stopping() -> Unavailable:
    """What a request is told that the time for draining was too short for."""
    return Unavailable("the gateway is stopping; send the request again", retry_after_s=1)


async def _tell(exchange: Exchange, error: Exception) -> None:
    """The error becomes the answer, or, once the answer has begun, its last event."""
    if not isinstance(error, GatewayError | ProtocolError):
        _log.error("a request failed", exc_info=error)
    if exchange.copy is not None:
        exchange.copy.drop()
    if exchange.is_started:
        await exchange.finish(error_event(error))
    else:
        await exchange.answer(error_status(error), error_headers(error), error_body(error))
