"""An answer on its way to the client, through the guardrails that check model output."""

import time
from collections.abc import Sequence
from typing import Any

import msgspec

from gateway.domain.guardrails.terms import GuardrailTerms
from gateway.guardrails.checking import Check
from gateway.guardrails.held_stream import FILTERED, HeldStream, HeldText, Json, form_of
from gateway.guardrails.whole_answer import WholeAnswer
from gateway.http.answer import WHOLE_BODY
from gateway.http.errors import UpstreamFailed
from gateway.inference.accounts import Accounts
from gateway.inference.exchange import Exchange
from gateway.inference.stream import STREAM_HEADERS
from gateway.inference.usage_record import UsageRecord
from gateway.services import Services
from protocol.accounting import DONE_EVENT, data_event
from protocol.requests import GenerationRequest
from protocol.responses import make_usage

GUARDRAIL_HEADER = "x-tiergate-guardrail"
_SKIPPED_COMMENT = b": guardrail skipped\n\n"


class AnswerCut(Exception):
    """The client has received everything it may have; the member must stop."""


async def note_skipped(client: Exchange) -> None:
    """Tell the client that some text passed unchecked."""
    if client.is_started:
        await client.send(_SKIPPED_COMMENT)
    else:
        client.extra_headers[GUARDRAIL_HEADER] = "skipped"


class GuardedAnswer:
    """Receives the answer in the client's place, and passes on the text that was checked."""

    def __init__(
        self, services: Services, client: Exchange, record: UsageRecord, guardrails: Sequence[GuardrailTerms]
    ) -> None:
        self._services = services
        self._client = client
        self._record = record
        self._guardrails = guardrails
        window_chars = max(each.window_chars for each in guardrails)
        self._held = HeldStream(window_chars=window_chars, num_choices=record.measured.num_choices)
        self._held_since_s: float | None = None
        self._has_spoken = False
        """The client was sent some model output."""
        self._form: Json = {}
        """The fields that all chunks of the answer share, such as id and model."""
        self._whole = b""

    def hear(self, chunk: bytes) -> None:
        """Nothing to do: `take` receives the chunks."""

    async def take(self, message: Any) -> None:
        """Handle an ASGI message. The stream to the client starts with the first bytes sent; until then a failure can
        still have its own status. Raises AnswerCut, GuardrailUnavailable and UpstreamFailed."""
        if WHOLE_BODY in message:
            await self._client.answer(200, {"content-type": "application/json"}, self._whole)
        elif message["type"] == "http.response.body" and message.get("more_body"):
            for event in message["body"].split(b"\n\n"):
                await self._hear_event(event)
                # Checked after each event, so that the cut does not depend on how many events arrive at once.
                if self._held.is_due:
                    await self._check_held(is_end=False)
        elif message["type"] == "http.response.body":
            await self._finish(message["body"])

    async def keep(self, body: bytes | None) -> None:
        """Raises GuardrailUnavailable and UpstreamFailed."""
        if body is not None:
            self._whole = await self._checked(body)
            await self._client.keep(self._whole)
        else:
            await self._check_held(is_end=True)
            await self._client.keep()

    def undo(self) -> None:
        """Nothing to do: the client's own listeners take back what they kept."""

    async def end(self, accounts: Accounts) -> None:
        """Complete the answer after AnswerCut."""
        request: GenerationRequest = self._record.accepted.request  # type: ignore[assignment]
        if request.stream_options is not None and request.stream_options.include_usage:
            await self._send([{**self._form, "choices": [], "usage": self._usage()}])
        await self._client.keep()
        await accounts.close("ok")
        await self._finish(DONE_EVENT)

    async def _hear_event(self, event: bytes) -> None:
        lines = event.split(b"\n")
        comments = b"".join([line + b"\n" for line in lines if line.startswith(b":")])
        if comments:
            await self._pass_on(comments + b"\n")
        data = b"\n".join([line[5:].removeprefix(b" ") for line in lines if line.startswith(b"data:")])
        if not data:
            return
        try:
            chunk = msgspec.json.decode(data, type=dict[str, Any])
        except (ValueError, RecursionError) as error:
            raise UpstreamFailed("the model's server sent what is no answer") from error
        self._form = form_of(chunk)
        self._held.add(chunk)
        if self._held_since_s is None and self._held.has_text:
            self._held_since_s = time.monotonic()

    async def _check_held(self, *, is_end: bool) -> None:
        blocked = await self._blocked_of(self._held.texts())
        released = self._held.release(blocked, is_end=is_end)
        if self._held.blocked:
            self._record.finish_reason = FILTERED
        if self._held_since_s is not None and not self._has_spoken:
            self._has_spoken = True
            self._services.metrics.observe_hold(time.monotonic() - self._held_since_s)
        await self._send(released)
        if self._held.is_over and not is_end:
            raise AnswerCut

    async def _checked(self, body: bytes) -> bytes:
        whole = WholeAnswer(body)
        blocked = await self._blocked_of(whole.texts())
        if not blocked:
            return body
        self._record.finish_reason = FILTERED
        return whole.without(blocked)

    async def _blocked_of(self, held: Sequence[HeldText]) -> set[int]:
        """The choices that are blocked, and therefore end here."""
        accepted = self._record.accepted
        texts = [each.text for each in held]
        check = Check("output", texts, accepted.principal.tenant_text, accepted.request_id)
        verdict = await self._services.guard.check(self._guardrails, check)
        if verdict.is_skipped:
            await note_skipped(self._client)
        return {held[number].choice for number in verdict.blocked}

    async def _send(self, chunks: list[Json]) -> None:
        if chunks:
            await self._pass_on(b"".join([data_event(msgspec.json.encode(chunk)) for chunk in chunks]))

    async def _pass_on(self, passed_on: bytes) -> None:
        if not self._client.is_started:
            await self._client.start(200, STREAM_HEADERS)
        await self._client.send(passed_on)

    async def _finish(self, last: bytes) -> None:
        if not self._client.is_started:
            await self._client.start(200, STREAM_HEADERS)
        await self._client.finish(last)

    def _usage(self) -> Any:
        record = self._record
        return make_usage(record.prompt_tokens, record.completion_tokens, cached_tokens=record.cached_prompt_tokens)
