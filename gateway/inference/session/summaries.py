"""Summaries of the messages that have left sessions. Each is a separate request to the small pool, at batch priority
and never sent to a saturated pool, and billed to the tenant like any other. No request waits for a summary, and writing
one does not hold the session."""

import asyncio
import logging
import time
from dataclasses import replace
from typing import Any

import msgspec

from gateway.clock import utc_now
from gateway.http.answer import WHOLE_BODY
from gateway.http.errors import GatewayError
from gateway.inference.exchange import Exchange
from gateway.inference.handler import COMPLETION, carry_out
from gateway.inference.measure import Measured, measure
from gateway.inference.server_tools.said import said_in
from gateway.inference.session.step import place_of
from gateway.inference.validate import CHAT_PATH, Accepted
from gateway.services import Services
from gateway.sessions.conversation import Conversation, Meta, Raw, describe, role_of
from gateway.sessions.store import Kept
from gateway.sessions.summaries import SummaryJob
from protocol.checks import decode_body
from protocol.errors import ProtocolError
from protocol.ids import new_request_id
from protocol.messages import AssistantMessage, Message, content_text
from protocol.requests import ChatCompletionRequest
from router.fleet import SMALL

_log = logging.getLogger(__name__)

ENDPOINT = "/v1/sessions"
BATCH_PRIORITY = 3
MAX_SUMMARY_TOKENS = 256
NUM_WRITERS = 4
PATIENCE_S = 120.0
"""How long a summary is retried against a session that keeps changing or is held."""
LOOK_AGAIN_S = 0.1
_TOO_LONG = "context_length_exceeded", "context_quota_exceeded"
INSTRUCTION = (
    "You keep the memory of a conversation. Sum up what follows in at most 150 words: names, facts, decisions, open "
    "questions. Keep what an earlier summary says. Write the summary alone."
)
_CHAT = msgspec.json.Decoder(ChatCompletionRequest)
_MESSAGE = msgspec.json.Decoder(Message)


async def summarize_forever(services: Services) -> None:
    async with asyncio.TaskGroup() as group:
        for _ in range(NUM_WRITERS):
            group.create_task(_write_forever(services))


async def _write_forever(services: Services) -> None:
    while True:
        job = await services.summaries.next()
        try:
            await summarize(services, job)
        except (GatewayError, ProtocolError) as error:
            # The messages that left stay in the session's `leaving`, and the next turn asks again.
            _log.info("no summary of a session now: %s", error)
        except Exception:
            _log.exception("a summary failed")


async def summarize(services: Services, job: SummaryJob) -> None:
    """Raises GatewayError and ProtocolError if no summary could be written."""
    place = place_of(services, job.principal, job.session_id)
    store = services.session_store
    kept = await store.get(place)
    leaving = kept.value.leaving
    if not leaving:
        return
    summary = await _write(services, job, _transcript(kept.value))
    give_up_at = time.monotonic() + PATIENCE_S
    while summary and time.monotonic() < give_up_at:
        now = await store.get(place)
        if now.value.leaving[: len(leaving)] != leaving or now.value.summary != kept.value.summary:
            # Another gateway has written a summary, or the session was replaced by another of the same name.
            return
        value, meta = _with_summary(now, summary, num_summarised=len(leaving), job=job)
        if await store.swap(place, now.meta_bytes, meta, value) == b"ok":
            return
        await asyncio.sleep(LOOK_AGAIN_S)


def _with_summary(
    now: Kept[Meta, Conversation], summary: str, *, num_summarised: int, job: SummaryJob
) -> tuple[Conversation, Meta]:
    value = Conversation(messages=now.value.messages, summary=summary, leaving=now.value.leaving[num_summarised:])
    meta = describe(
        value,
        session_id=job.session_id,
        before=now.meta,
        num_left=0,
        revision=new_request_id(utc_now()),
        now=now.meta.changed_at,
    )
    return value, meta


async def _write(services: Services, job: SummaryJob, transcript: str) -> str:
    """Write the summary. If the transcript is too long, its oldest part is left out."""
    while True:
        accepted = _accept(services, job, transcript)
        try:
            measured = await measure(accepted, services)
            break
        except GatewayError as error:
            if error.code not in _TOO_LONG or len(transcript) < 100:
                raise
            transcript = transcript[len(transcript) // 4 :]
    body = await _answer(services, accepted, measured)
    return said_in(msgspec.json.decode(body)).text or ""


async def _answer(services: Services, accepted: Accepted[Any], measured: Measured) -> bytes:
    parts: list[bytes] = []

    async def take(message: Any) -> None:
        parts.append(message.get(WHOLE_BODY, b""))

    exchange = Exchange({"path": CHAT_PATH, "headers": ()}, _no_body, take)
    await carry_out(services, exchange, accepted, measured, COMPLETION)
    return b"".join(parts)


def _accept(services: Services, job: SummaryJob, transcript: str) -> Accepted[Any]:
    catalog, now = services.catalog.current, utc_now()
    tier = catalog.tier_of(job.principal)
    body = msgspec.json.encode(
        {
            "model": SMALL,
            "messages": [{"role": "system", "content": INSTRUCTION}, {"role": "user", "content": transcript}],
            "max_tokens": MAX_SUMMARY_TOKENS,
            "temperature": 0,
            **({"user": job.user} if job.user else {}),
        }
    )
    return Accepted(
        request_id=new_request_id(now),
        client_request_id=job.request_id,
        path=CHAT_PATH,
        principal=job.principal,
        tier=replace(tier, priority=BATCH_PRIORITY, is_best_effort=True, is_hedged=False, ttft_target_ms=None),
        catalog=catalog,
        body=body,
        request=decode_body(body, _CHAT),
        received_at=now,
        received_monotonic_s=time.monotonic(),
        authenticate_ms=0.0,
        session_id=job.session_id,
        endpoint=ENDPOINT,
    )


def _transcript(conversation: Conversation) -> str:
    lines = [f"Summary so far: {conversation.summary}"] if conversation.summary else []
    return "\n".join([*lines, *map(_line, conversation.leaving)])


def _line(raw: Raw) -> str:
    message = _MESSAGE.decode(raw)
    text = content_text(message.content)
    if isinstance(message, AssistantMessage):
        calls = [f"[calls {call.function.name}({call.function.arguments})]" for call in message.tool_calls or ()]
        text = " ".join(filter(None, [text, *calls]))
    return f"{role_of(raw)}: {text}"


async def _no_body() -> Any:
    raise AssertionError("there is no client")
