"""One model's answer in the playground: whole, or as server-sent events for the script that inserts it."""

import asyncio
import contextlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gateway.dashboard.playground_call import Call, while_connected
from gateway.dashboard.playground_code import snippets
from gateway.dashboard.rendering import render_part
from gateway.dashboard.sse import HEADERS, html_event
from gateway.domain.principal import Principal
from gateway.http.errors import GatewayError
from gateway.inference.dry_run import explain
from gateway.services import Services
from protocol.errors import ProtocolError
from protocol.route import RouteExplanation
from protocol.usage import UsageEvent

Body = Mapping[str, Any]


@dataclass(frozen=True)
class Asking:
    """Whose request it is and how the visitor reached the gateway. body: a chat completion's, without `stream`."""

    services: Services
    principal: Principal
    origin: str
    client: Any
    body: Body


@dataclass(frozen=True)
class Answer:
    column: int
    model: str
    text: str
    problem: str
    """Why there is no answer; "" where there is one."""
    about: str
    end: str


async def answer_whole(asking: Asking, call: Call, *, column: int) -> Answer:
    about = await describe_route(asking)
    await call.run(asking.services)
    text, problem = read_answer(call.body)
    end = describe_end(call.event)
    return Answer(column, str(asking.body["model"]), text, problem, about, end)


def whole_call(asking: Asking) -> Call:
    return Call(asking.principal, json.dumps(asking.body).encode(), client=asking.client)


class StreamedAnswer(Response):
    """Events: `about` (HTML: the route, and the request as code), the chunks of the answer as they come, `problem`
    (HTML) if the request was refused, and `end` (HTML: what the answer took and cost)."""

    def __init__(self, asking: Asking) -> None:
        super().__init__()
        self._asking = asking

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def tell(chunk: bytes, *, is_last: bool = False) -> None:
            await send({"type": "http.response.body", "body": chunk, "more_body": not is_last})

        asking = self._asking
        body = json.dumps({**asking.body, "stream": True}).encode()
        call = Call(asking.principal, body, client=asking.client, hear=tell)

        async def play() -> None:
            headers = [(name.lower().encode(), value.encode()) for name, value in HEADERS.items()]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await tell(html_event("about", await describe_route(asking)))
            await call.run(asking.services)
            _, problem = read_answer(call.body)
            if problem:
                await tell(html_event("problem", render_part("playground_problem.html", problem=problem)))
            # The blank line ends an event that a member left unfinished.
            await tell(b"\n\n" + html_event("end", describe_end(call.event)), is_last=True)

        await while_connected(receive, [call], play())


async def answer_all(asked: Mapping[int, Asking], receive: Receive) -> list[Answer]:
    """The answers of all columns, asked at the same time."""
    calls = {column: whole_call(asking) for column, asking in asked.items()}
    answers: list[Answer] = []

    async def play() -> None:
        columns = asked.items()
        answers.extend(
            await asyncio.gather(*(answer_whole(asking, calls[column], column=column) for column, asking in columns))
        )

    await while_connected(receive, list(calls.values()), play())
    return answers


async def describe_route(asking: Asking) -> str:
    """The route as HTML. Errors are ignored here: the request is sent anyway, and shows and counts its own refusal."""
    explanation: RouteExplanation | None = None
    with contextlib.suppress(GatewayError, ProtocolError):
        explanation = await explain(asking.services, asking.principal, json.dumps(asking.body).encode())
    return render_part(
        "playground_about.html", route=explanation, snippets=snippets(asking.origin, asking.body), body=asking.body
    )


def describe_end(event: UsageEvent | None) -> str:
    return render_part("playground_end.html", event=event)


def read_answer(body: bytes) -> tuple[str, str]:
    """(text, problem) of a whole answer; both are empty for a stream."""
    if not body:
        return "", ""
    whole = json.loads(body)
    if "error" in whole:
        error = whole["error"]
        return "", ": ".join(str(part) for part in (error.get("code"), error.get("message")) if part)
    message = whole["choices"][0]["message"]
    return (message.get("content") or ""), ""
