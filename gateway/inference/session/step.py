"""The step itself: open the session, put its conversation in front, record the answer, store the turn, release the
session.

A turn is stored whole, before the answer's last byte, or not at all: a request that fails, is refused or is abandoned
by its client changes nothing. Other requests to the session are refused meanwhile (409).
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from gateway.clock import utc_now
from gateway.domain.principal import Principal
from gateway.domain.sealing import CannotUnseal
from gateway.domain.sessions.terms import SessionTerms
from gateway.http.errors import Unavailable
from gateway.inference.exchange import ClientGone, Exchange
from gateway.inference.server_tools.said import Said, said_in, said_in_stream
from gateway.inference.session.prompt import Prompt
from gateway.inference.session.window import turns_to_leave
from gateway.inference.validate import Accepted
from gateway.services import Services
from gateway.sessions.conversation import Conversation, Meta, Raw, describe
from gateway.sessions.store import Kept, Place
from gateway.sessions.summaries import SummaryJob
from protocol.legacy import modern
from protocol.requests import PlatformChatRequest

MESSAGES_HEADER = "x-tiergate-session-messages"
_WHOLE = ("stop", "length", "tool_calls", "function_call", "content_filter")


@asynccontextmanager
async def in_session(
    services: Services, exchange: Exchange, accepted: Accepted[PlatformChatRequest]
) -> AsyncIterator[Accepted[Any]]:
    """Yields the request with the stored conversation in it. Raises GatewayError and ProtocolError."""
    assert accepted.session_id is not None
    place = place_of(services, accepted.principal, accepted.session_id)
    before = await services.session_store.open(place, holder=accepted.request_id)
    turn: _Turn | None = None
    try:
        prompt = Prompt(accepted.body, accepted.request, before.value if before else Conversation())
        prompt.check()
        num_left = await turns_to_leave(services, accepted, prompt)
        exchange.extra_headers[MESSAGES_HEADER] = str(prompt.num_kept_before(num_left))
        turn = _Turn(services, accepted, place, before, prompt, num_left)
        exchange.listeners.append(turn)
        chat = prompt.chat(num_left)
        request = chat if chat.server_tools else modern(chat)
        yield msgspec.structs.replace(accepted, body=prompt.body(num_left), request=request)
    except Exception as error:
        if turn is not None and not isinstance(error, ClientGone):
            turn.undo()
        raise
    finally:
        exchange.listeners.clear()
        services.session_store.release(place, holder=accepted.request_id)


def place_of(services: Services, principal: Principal, session_id: str) -> Place:
    """Raises Unavailable if the tenant's key cannot be decrypted."""
    terms = services.catalog.current.session_terms.get(principal.tenant_id, SessionTerms())
    try:
        key = terms.key(principal.tenant_id, peppers=services.settings.peppers)
    except CannotUnseal:
        message = "the key of your sessions cannot be read; ask the platform's operator"
        raise Unavailable(message, retry_after_s=60, code="session_unavailable") from None
    return Place(principal.tenant_text, session_id, key, terms.is_encrypted)


class _Turn:
    """Listens to the answer, and stores the turn when it is complete."""

    def __init__(
        self,
        services: Services,
        accepted: Accepted[PlatformChatRequest],
        place: Place,
        before: Kept[Meta, Conversation] | None,
        prompt: Prompt,
        num_left: int,
    ) -> None:
        self._services = services
        self._accepted = accepted
        self._place = place
        self._before = before
        self._prompt = prompt
        self._num_left = num_left
        self._heard: list[bytes] = []
        self._written: bytes | None = None

    def hear(self, chunk: bytes) -> None:
        self._heard.append(chunk)

    async def keep(self, body: bytes | None) -> None:
        said = said_in_stream(b"".join(self._heard)) if body is None else said_in(msgspec.json.decode(body))
        answer = _message(said)
        if answer is None:
            return
        before, accepted, left = self._before, self._accepted, self._prompt.left(self._num_left)
        conversation = Conversation(
            messages=[*self._prompt.kept(self._num_left), answer],
            summary=before.value.summary if before else None,
            leaving=self._leaving(left),
        )
        meta = describe(
            conversation,
            session_id=self._place.id,
            before=before.meta if before else None,
            num_left=len(left),
            revision=accepted.request_id,
            now=utc_now(),
        )
        store = self._services.session_store
        self._written = await store.commit(self._place, meta, conversation, holder=accepted.request_id)
        if conversation.leaving:
            self._services.summaries.ask(
                SummaryJob(accepted.principal, self._place.id, accepted.request_id, accepted.request.user)
            )

    def undo(self) -> None:
        """Restore the session, because the client was told that its request failed after all."""
        if self._written is not None:
            self._services.session_store.undo_soon(self._place, self._written, self._before)

    def _leaving(self, left: list[Raw]) -> list[Raw]:
        """The messages that wait to be summarised. Their size is bounded: while no summary is written, the oldest are
        dropped without one."""
        terms = self._accepted.catalog.session_terms.get(self._accepted.principal.tenant_id, SessionTerms())
        if terms.overflow != "summary":
            return []
        leaving = [*(self._before.value.leaving if self._before else ()), *left]
        size = sum(len(bytes(message)) for message in leaving)
        while size > self._services.settings.session_max_bytes:
            size -= len(bytes(leaving.pop(0)))
        return leaving


def kept_message(completion: dict[str, Any]) -> list[Raw]:
    """The message to store for a whole answer; empty if there is none."""
    message = _message(said_in(completion))
    return [] if message is None else [message]


def _message(said: Said) -> Raw | None:
    """The message to store for an answer. None if the answer broke off, or is empty and so could not be rendered by a
    chat template."""
    if said.finish_reason not in _WHOLE or not (said.text or said.calls):
        return None
    message: dict[str, Any] = {"role": "assistant", "content": said.text}
    if said.calls:
        message["tool_calls"] = [call.history() for call in said.calls]
    return Raw(msgspec.json.encode(message))
