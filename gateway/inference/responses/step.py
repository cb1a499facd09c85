"""A response: its chat completion takes the normal path; the answer is translated into a response, and stored."""

from collections.abc import Awaitable, Callable
from typing import Any, cast

import msgspec

from gateway.domain.principal import Principal
from gateway.http.answer import WHOLE_BODY
from gateway.http.errors import InvalidRequest, UpstreamFailed
from gateway.inference.exchange import Exchange
from gateway.inference.responses.answer import Building, Json
from gateway.inference.responses.items import items_of
from gateway.inference.responses.request import RESPONSES_PATH, chat_of, in_responses_words
from gateway.inference.service_tier import terms_of
from gateway.inference.session.prompt import Prompt
from gateway.inference.session.step import kept_message, place_of
from gateway.inference.session.window import turns_to_leave
from gateway.inference.stream import STREAM_HEADERS
from gateway.inference.usage_record import UsageRecord
from gateway.inference.validate import CHAT_PATH, Accepted
from gateway.services import Services
from gateway.sessions.conversation import Conversation
from gateway.sessions.responses import ResponseMeta, StoredResponse
from gateway.sessions.store import Place
from protocol.errors import ProtocolError
from protocol.legacy import modern
from protocol.responses_api import ResponsesRequest

CarryOut = Callable[[Exchange, Accepted[Any]], Awaitable[UsageRecord]]


async def answer_response(
    services: Services, client: Exchange, accepted: Accepted[ResponsesRequest], carry_out: CarryOut
) -> None:
    """Raises GatewayError and ProtocolError."""
    request, store = accepted.request, services.response_store
    place = response_place(services, accepted.principal, f"resp_{accepted.request_id.replace('-', '')}")
    history = Conversation()
    if request.previous_response_id is not None:
        before = await store.get(response_place(services, accepted.principal, request.previous_response_id))
        history = Conversation(messages=before.value.messages)
    is_kept = request.store is not False
    if is_kept:
        await store.open(place, holder=accepted.request_id)
    try:
        body, chat = chat_of(request)
        prompt = Prompt(body, chat, history)
        prompt.check()
        tier = terms_of(accepted.tier, chat)
        asked: Accepted[Any] = cast(Accepted[Any], accepted)
        asked = msgspec.structs.replace(asked, path=CHAT_PATH, endpoint=RESPONSES_PATH, request=chat, tier=tier)
        num_left = await turns_to_leave(services, asked, prompt) if request.truncation == "auto" else 0
        asked = msgspec.structs.replace(asked, body=prompt.body(num_left), request=modern(prompt.chat(num_left)))
        building = Building(request, place.id, created_at=int(accepted.received_at.timestamp()))
        answer = _Answer(services, client, accepted, building, prompt, place if is_kept else None)
        await _carry_out(client, answer, asked, carry_out)
    except (ProtocolError, InvalidRequest) as error:
        raise in_responses_words(error) from error
    finally:
        store.release(place, holder=accepted.request_id)


async def _carry_out(client: Exchange, answer: "_Answer", asked: Accepted[Any], carry_out: CarryOut) -> None:
    exchange = Exchange({"path": CHAT_PATH, "headers": ()}, _no_body, answer.take)
    exchange.extra_headers, exchange.preparation, exchange.trace = (
        client.extra_headers,
        client.preparation,
        client.trace,
    )
    exchange.listeners.append(answer)
    try:
        await carry_out(exchange, asked)
    finally:
        client.is_admitted, client.served_by = exchange.is_admitted, exchange.served_by


def response_place(services: Services, principal: Principal, response_id: str) -> Place:
    return place_of(services, principal, response_id)


class _Answer:
    """Receives the chat's answer, stores the response, and sends it to the client."""

    def __init__(
        self,
        services: Services,
        client: Exchange,
        accepted: Accepted[ResponsesRequest],
        building: Building,
        prompt: Prompt,
        place: Place | None,
    ) -> None:
        self._services = services
        self._client = client
        self._accepted = accepted
        self._building = building
        self._prompt = prompt
        self._place = place
        self._written: bytes | None = None

    def hear(self, chunk: bytes) -> None:
        """Nothing to do: `take` receives the chunks."""

    async def take(self, message: Any) -> None:
        if not self._accepted.request.stream:
            if WHOLE_BODY in message:
                body = msgspec.json.encode(self._building.response)
                await self._client.answer(200, {"content-type": "application/json"}, body)
        elif message["type"] == "http.response.start":
            await self._client.start(200, STREAM_HEADERS)
            await self._tell(self._building.begin())
        elif message.get("more_body"):
            for event in message["body"].split(b"\n\n"):
                await self._pass_on(event)
        else:
            await self._client.finish(_encoded(self._building.finish()))

    async def keep(self, body: bytes | None) -> None:
        if body is not None:
            self._building.add_whole(msgspec.json.decode(body, type=dict))
        if self._building.response["status"] == "in_progress":
            raise UpstreamFailed("the model's server broke off its answer")
        if self._place is None:
            return
        stored = StoredResponse(
            response=msgspec.Raw(msgspec.json.encode(self._building.response)),
            input_items=[msgspec.Raw(msgspec.json.encode(item)) for item in self._input_items()],
            messages=[*self._prompt.conversation(), *kept_message(self._said())],
        )
        meta = ResponseMeta(id=self._place.id, created_at=self._accepted.received_at)
        store, holder = self._services.response_store, self._accepted.request_id
        self._written = await store.commit(self._place, meta, stored, holder=holder)

    def undo(self) -> None:
        if self._place is not None and self._written is not None:
            self._services.response_store.undo_soon(self._place, self._written, None)

    def _said(self) -> Json:
        """The output as a chat completion with one message."""
        texts, calls = [], []
        for item in self._building.response["output"]:
            if item["type"] == "message":
                texts.append(item["content"][0]["text"])
            elif item["type"] == "function_call":
                function = {"name": item["name"], "arguments": item["arguments"]}
                calls.append({"id": item["call_id"], "type": "function", "function": function})
        message = {"role": "assistant", "content": "".join(texts) or None}
        return {"choices": [{"message": message | ({"tool_calls": calls} if calls else {}), "finish_reason": "stop"}]}

    def _input_items(self) -> list[Json]:
        items = items_of(self._accepted.request.input)
        return [
            {"id": f"item_{self._accepted.request_id}_{i}", "type": "message", **item} for i, item in enumerate(items)
        ]

    async def _pass_on(self, event: bytes) -> None:
        lines = event.split(b"\n")
        comments = b"".join([line + b"\n" for line in lines if line.startswith(b":")])
        if comments:
            await self._client.send(comments + b"\n")
        data = b"\n".join([line[5:].removeprefix(b" ") for line in lines if line.startswith(b"data:")])
        if data:
            try:
                chunk = msgspec.json.decode(data, type=dict)
            except (ValueError, RecursionError) as error:
                raise UpstreamFailed("the model's server sent what is no answer") from error
            await self._tell(self._building.add(chunk))

    async def _tell(self, events: list[Json]) -> None:
        if events:
            await self._client.send(_encoded(events))


def _encoded(events: list[Json]) -> bytes:
    parts = [b"event: %b\ndata: %b\n\n" % (event["type"].encode(), msgspec.json.encode(event)) for event in events]
    return b"".join(parts)


async def _no_body() -> Any:
    raise AssertionError("the client's body was read")
