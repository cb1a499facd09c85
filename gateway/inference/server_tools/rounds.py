"""A request with server tools, round by round. Each round is a separate request: it is measured, admitted, routed,
billed and settled before its tools are called, so limits apply to every round and none is held while tools run."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Any

import msgspec

from gateway.clock import utc_now
from gateway.domain.tools.models import ServerTool
from gateway.http.errors import GatewayError, InvalidRequest
from gateway.inference.exchange import Exchange
from gateway.inference.server_tools.answers import ClientAnswer, StreamedAnswer, WholeAnswer
from gateway.inference.server_tools.request import Rounds
from gateway.inference.server_tools.said import MAX_CALLS, Asked
from gateway.inference.server_tools.usage import UsageSum
from gateway.inference.usage_record import UsageRecord
from gateway.inference.validate import Accepted
from gateway.services import Services
from gateway.tools.calls import ToolCall, ToolResult, failure
from protocol.errors import ProtocolError
from protocol.ids import new_request_id
from router.fleet import AUTO

RunRound = Callable[[Exchange, Accepted[Any]], Awaitable[UsageRecord]]
"""Measure, admit, route, stream, close, settle."""
BEAT_S = 5.0
_LIVE_HEADERS = ("x-ratelimit-", "x-tiergate-limiter", "x-tiergate-guardrail")
"""Prefixes of headers that are taken from the last round. The headers that tell what served the answer, and why, are
the first round's."""


async def answer_in_rounds(services: Services, client: Exchange, accepted: Accepted[Any], run_round: RunRound) -> None:
    """accepted: holds a PlatformChatRequest. Raises GatewayError and ProtocolError; completed rounds stay billed."""
    request, usage = accepted.request, UsageSum()
    own = [tool.function.name for tool in request.tools or ()]
    tools = await _find_tools(services, accepted)
    rounds = Rounds(accepted.body, request)
    answer: ClientAnswer = (StreamedAnswer if request.stream else WholeAnswer)(client, usage)
    while True:
        offered = _offered(services, accepted, tools, rounds.number)
        body, asked = rounds.body(offered)
        answer.begin()
        if rounds.number:
            accepted_round = _next_round(accepted, body, asked)
            exchange = _exchange_of(client, answer, rounds.number)
        else:
            accepted_round = msgspec.structs.replace(accepted, body=body, request=asked)
            exchange = _exchange_of(client, answer, 0)
        record = await _run(client, exchange, accepted_round, run_round, number=rounds.number)
        usage.add(record)
        said = answer.said()
        # We also answer calls of unknown tools, which the client did not offer: told so, the model may do better.
        calls = said.wants(without=own) if offered else ()
        left = rounds.num_left
        if not calls or (left is not None and left <= record.completion_tokens):
            break
        results = await _call_tools(services, client, answer, accepted_round, offered, calls)
        # Calls of the client's own tools are dropped: with our results the model asks for them again, or does without.
        called = {"role": "assistant", "content": said.text, "tool_calls": [call.history() for call in calls]}
        rounds.go_on(called, results, num_tokens=record.completion_tokens, model=_model_from_now(services, record))
    await answer.finish(own=own, num_rounds=rounds.number + 1)


async def _find_tools(services: Services, accepted: Accepted[Any]) -> list[ServerTool]:
    """The tools in the request's order. Raises InvalidRequest for an unknown name."""
    names = accepted.request.server_tools or []
    by_name = await services.tool_book.tools_of(accepted.principal.tenant_id)
    for i, name in enumerate(names):
        if name not in by_name:
            message = f"server_tools[{i}]: there is no tool {name!r} for you; ask your administrator which there are"
            raise InvalidRequest(message, param=f"server_tools[{i}]", code="unknown_tool")
    return [by_name[name] for name in names]


def _offered(services: Services, accepted: Accepted[Any], tools: Sequence[ServerTool], number: int) -> list[ServerTool]:
    """The tools that may still be called. In the end there are none, and the model has to answer."""
    is_late = time.monotonic() - accepted.received_monotonic_s > services.settings.request_timeout_s
    if is_late or accepted.request.tool_choice == "none" or number >= services.settings.tool_max_rounds:
        return []
    return [tool for tool in tools if number < tool.max_rounds]


def _next_round(accepted: Accepted[Any], body: bytes, request: object) -> Accepted[Any]:
    """The next round has its own request id. All rounds share the client's id, or the first round's id if it sent
    none."""
    now = utc_now()
    return msgspec.structs.replace(
        accepted,
        request_id=new_request_id(now),
        client_request_id=accepted.client_request_id or accepted.request_id,
        body=body,
        request=request,
        received_at=now,
        received_monotonic_s=time.monotonic(),
        authenticate_ms=0.0,
    )


def _exchange_of(client: Exchange, answer: ClientAnswer, number: int) -> Exchange:
    """An exchange for one round that stands in for the client's."""
    exchange = Exchange({"path": client.path, "headers": ()}, _no_body, answer.take)
    if number == 0:
        exchange.extra_headers, exchange.preparation, exchange.trace = (
            client.extra_headers,
            client.preparation,
            client.trace,
        )
    elif client.trace is not None:
        exchange.trace = client.trace.begin_round(number + 1)
    return exchange


async def _run(
    client: Exchange, exchange: Exchange, accepted: Accepted[Any], run_round: RunRound, *, number: int
) -> UsageRecord:
    problem: str | None = "cancelled"
    try:
        record = await run_round(exchange, accepted)
        problem = None
        return record
    except (GatewayError, ProtocolError) as error:
        problem = type(error).__name__
        if number:
            # OpenAI's client libraries retry on their own, and the tools would be called again.
            client.extra_headers["x-should-retry"] = "false"
        raise
    finally:
        client.is_admitted, client.served_by = exchange.is_admitted, exchange.served_by
        if number:
            client.extra_headers |= {
                name: value for name, value in exchange.extra_headers.items() if name.startswith(_LIVE_HEADERS)
            }
            if exchange.trace is not None:
                exchange.trace.end_round(problem)


async def _call_tools(
    services: Services,
    client: Exchange,
    answer: ClientAnswer,
    accepted: Accepted[Any],
    offered: Sequence[ServerTool],
    calls: Sequence[Asked],
) -> list[dict[str, Any]]:
    """Run all calls concurrently, and return the messages with their results, in the order of the calls."""
    by_name = {tool.name: tool for tool in offered}
    async with asyncio.TaskGroup() as group:
        beating = group.create_task(_beat(answer, sorted({call.name for call in calls} & by_name.keys())))
        tasks = {
            i: group.create_task(
                services.tools.call(
                    ToolCall(
                        tool=by_name[call.name],
                        arguments=call.arguments,
                        principal=accepted.principal,
                        request_id=accepted.request_id,
                        call_id=f"{accepted.request_id}.{i}",
                        trace=client.trace,
                    )
                )
            )
            for i, call in enumerate(calls[:MAX_CALLS])
            if call.name in by_name
        }
        if tasks:
            await asyncio.wait(tasks.values())
        beating.cancel()
    results = [tasks[i].result() if i in tasks else _not_called(call, i) for i, call in enumerate(calls)]
    return [
        {"role": "tool", "tool_call_id": call.id, "content": result.text}
        for call, result in zip(calls, results, strict=True)
    ]


def _not_called(call: Asked, i: int) -> ToolResult:
    if i < MAX_CALLS:
        return failure("bad_arguments", f"there is no tool {call.name[:64]!r} to be called now")
    return failure("busy", f"at most {MAX_CALLS} calls at once; ask again for this one")


async def _beat(answer: ClientAnswer, names: Collection[str]) -> None:
    while True:
        await asyncio.sleep(BEAT_S)
        await answer.beat(names)


def _model_from_now(services: Services, record: UsageRecord) -> str | None:
    """The model for further rounds once `auto` has chosen: one answer comes from one model, whose replica has the
    prefix cached. None if the request names its model."""
    if record.accepted.request.model != AUTO:
        return None
    return services.settings.overflow_pools.get(record.pool, record.pool)


async def _no_body() -> Any:
    raise AssertionError("the client's body was read")
