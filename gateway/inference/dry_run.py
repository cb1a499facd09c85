"""`POST /v1/route`: authenticate, validate, measure and decide as for a chat completion, and answer with the decision.
Nothing is sent to a member."""

import time
from typing import Any

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response

from gateway.clock import utc_now
from gateway.domain.principal import Principal
from gateway.inference.exchange import Exchange
from gateway.inference.measure import Measured, measure
from gateway.inference.refusals import as_gateway_error
from gateway.inference.service_tier import terms_of
from gateway.inference.validate import CHAT_PATH, Accepted, refuse_session
from gateway.services import PrincipalDep, Services, ServicesDep
from protocol.checks import check_request, decode_body
from protocol.ids import new_id
from protocol.requests import ChatCompletionRequest
from protocol.route import CandidateLoad, PoolStanding, RouteExplanation
from router.errors import RouteError
from router.policy import Decision, decide

router = APIRouter(prefix="/v1", tags=["completions"])

_CHAT = msgspec.json.Decoder(ChatCompletionRequest)
_JSON: dict[int | str, dict[str, Any]] = {200: {"content": {"application/json": {}}}}


@router.post("/route", response_class=Response, responses=_JSON)
async def dry_run(request: Request, principal: PrincipalDep, services: ServicesDep) -> Response:
    """Explain where a chat completion with this body would go now, why, and what it would reserve.

    Nothing is sent, reserved or counted. A body that would be refused as a completion is refused here, too.
    """
    exchange = Exchange(request.scope, request.receive, _no_send)
    refuse_session(exchange)
    explanation = await explain(services, principal, await exchange.read_body(services.settings.max_body_bytes))
    return Response(msgspec.json.encode(explanation), media_type="application/json")


async def explain(services: Services, principal: Principal, body: bytes) -> RouteExplanation:
    """Raises the same errors that would refuse a completion with this body."""
    principal.require("inference")
    chat = decode_body(body, _CHAT)
    check_request(chat)
    fleet, catalog, now = services.registry.fleet, services.catalog.current, utc_now()
    tier = catalog.tier_of(principal)
    asked = Accepted(
        request_id=str(new_id(now)),
        client_request_id=None,
        path=CHAT_PATH,
        principal=principal,
        tier=terms_of(tier, chat),
        catalog=catalog,
        body=b"",
        request=chat,
        received_at=now,
        received_monotonic_s=time.monotonic(),
        authenticate_ms=0.0,
    )
    measured = await measure(asked, services, scores_all=True)
    try:
        decision = decide(measured.route_request, measured.policy, fleet, services.gates.states)
    except RouteError as error:
        raise as_gateway_error(error, chat.model) from None
    return _explanation(decision, measured)


def _explanation(decision: Decision, measured: Measured) -> RouteExplanation:
    return RouteExplanation(
        model=decision.model_id,
        pool=decision.pool,
        adapter=measured.adapter_name,
        route=decision.reason,
        complexity=decision.complexity,
        threshold=decision.threshold,
        is_uncertain=measured.route_request.is_uncertain,
        needs_large=measured.route_request.needs_large,
        is_warm=measured.route_request.is_warm,
        pools=[PoolStanding(pool=look.pool, standing=look.standing) for look in decision.pools],
        candidates=[
            CandidateLoad(
                worker_id=candidate.member.worker_id,
                turns=round(candidate.turns, 3),
                num_waiting=candidate.num_waiting,
                num_running=candidate.num_running,
                is_home=candidate.is_home,
                is_adapter_resident=candidate.is_resident,
            )
            for candidate in decision.candidates
        ],
        prompt_tokens=measured.prompt_tokens,
        is_estimate=measured.is_estimate,
        max_tokens=measured.route_request.max_tokens,
        max_cost_nanousd=measured.dearest_nanousd,
    )


async def _no_send(_message: object) -> None:
    raise AssertionError("only reads")
