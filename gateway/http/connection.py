"""One connection, from accepting to closing: its requests, deadlines and refusals.

Everything that a client can do before it is authenticated is bounded: here in time and number, in `parsing` in bytes.

At most one read deadline is set at a time. It is a number that the front door's sweep compares, so requests need no
timers.
"""

import asyncio
from collections.abc import Callable
from typing import Any

from uvicorn._types import ASGI3Application
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import STATUS_LINE
from uvicorn.server import ServerState

from gateway.http.answer import REQUEST_BODY, Answer
from gateway.http.draining import is_leaving
from gateway.http.errors import BodyTimeout, GatewayError, HeadTimeout, InvalidRequest, Unavailable
from gateway.http.front_door import NEVER, SILENT_S, FrontDoor
from gateway.http.header_block import head_block
from gateway.http.known_head import KnownHead, known_head
from gateway.http.parsing import BETWEEN, BODY, DEAF, HEAD, RequestParsing
from gateway.http.refusal import Refusal, refusal_of
from gateway.http.signal import Signal

MAX_PIPELINED = 16
"""Requests that may wait behind the one being answered. Only tools pipeline; further requests must be sent again."""
MIN_BYTES_PER_S = 65536
"""The minimum speed of a body that takes longer than `body_s`."""
_LINGER_S = 5.0
_MAX_LINGER_BYTES = 16 * 2**20
"""How much is read and discarded after a refusal: a client that sends a body of twice the default limit still reads its
413. After refused headers it is a sixteenth of this."""
_LAST_WAIT_S = 2.0
"""How long a server that stops waits for the next request after a stream."""
_MAX_NEW_HEADS = 3
"""After this many new heads in a row, a client's requests are no longer compared with its previous head."""


class Connection(RequestParsing):
    def __init__(
        self,
        door: FrontDoor,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._door, self._bounds = door, door.bounds
        self._active: Answer | None = None
        """The request that is being answered; later ones wait in `pipeline`."""
        self._known_head: KnownHead | None = None
        """The head of the previous request."""
        self._num_new_heads = 0
        """How many heads in a row differed from the known one."""
        self._is_ending = False
        self._linger_bytes = _MAX_LINGER_BYTES
        self._phase_began = door.now
        self.deadline = door.now + self._bounds.head_s
        self.write_deadline = NEVER

    # Transport callbacks.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)  # type: ignore[arg-type]
        num_over = len(self.connections) - self._bounds.max_connections
        if num_over > 0:
            self._door.note("too many connections")
            self._parsing = DEAF
            self._set_ending()
            transport.write(self._error_bytes(Unavailable("too many connections", retry_after_s=2)))  # type: ignore[attr-defined]
            transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._forget_requests()

    def eof_received(self) -> None:
        """The client is gone. The transport closes once everything written has been sent, at the latest after
        `stalled_s`."""
        self._forget_requests()
        self._set_ending()

    def shutdown(self) -> None:
        """Called when the server stops. A client whose stream began before that was told that the connection stays, and
        may send its next request at the stream's end: it gets an answer, and only that one closes the connection."""
        active = self._active
        is_promised = active is not None and active.response_started and active.keep_alive
        if not (is_promised and is_leaving(self.server_state)):
            super().shutdown()

    def pause_writing(self) -> None:
        super().pause_writing()
        self.write_deadline = self._door.now + self._bounds.stalled_s

    def resume_writing(self) -> None:
        super().resume_writing()
        self.write_deadline = NEVER

    def data_received(self, data: bytes) -> None:
        if self._parsing == DEAF:
            return self._discard(data)
        if self._parsing == BETWEEN:
            if self._active is None and self._num_new_heads < _MAX_NEW_HEADS:
                return self._begin(data)
            self._await_head()
        self._receive(data)

    def _begin(self, data: bytes) -> None:
        """A request begins, and no earlier one is being answered."""
        known = self._known_head
        body = None if known is None else known.body_in(data)
        if known is not None and body is not None:
            self._num_new_heads = 0
            return self._repeat(known, body)
        num_before = self.num_parsed
        self._await_head()
        self._receive(data)
        is_whole = self._parsing == BETWEEN and self.num_parsed == num_before + 1
        if is_whole and self._active in (None, self.cycle):
            # The whole request came in one piece, as small requests do. It may be refused already.
            self._num_new_heads += num_before > 0
            self._known_head = known_head(data, self.scope) if num_before and self.cycle.keep_alive else None

    def _repeat(self, known: KnownHead, body: bytes) -> None:
        if self._door.turn_away is not None and not self.flow.write_paused:
            refusal = self._door.turn_away(known.scope)
            if refusal is not None:
                return self._refuse_whole(refusal)
        self.scope = known.scope_for(body)  # type: ignore[assignment]
        self.scope[REQUEST_BODY] = body  # type: ignore[literal-required]
        self.expect_100_continue = False
        self.cycle = answer = self._make_answer(keep_alive=True)
        answer.body, answer.more_body = body, False  # type: ignore[assignment]
        answer.message_event.set()
        self._start(answer, self.app)

    def _refuse_whole(self, refusal: Refusal) -> None:
        """Answer a whole request with a known head without an `Answer`: most requests under overload end here."""
        is_last = (b"connection", b"close") in self.server_state.default_headers
        self.server_state.total_requests += 1
        self.transport.write(self._refusal_bytes(refusal))
        if is_last:
            self._end()
        else:
            self.deadline = self._door.now + self._bounds.keep_alive_s

    def _await_head(self) -> None:
        self._parsing, self._head_bytes = HEAD, 0
        if self.num_parsed:
            # The first head's deadline counts from the time of connecting.
            self.deadline = self._door.now + self._bounds.head_s

    # Parser callbacks.

    def on_message_begin(self) -> None:
        if len(self.pipeline) >= MAX_PIPELINED or (self._active is not None and not self._active.keep_alive):
            self._give_up(InvalidRequest("too many requests at once on one connection"))
        self._parsing, self._head_bytes, self._is_head_new = HEAD, 0, True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        if self.parser.should_upgrade():
            self._plain_head = self._head_without_upgrade()
            return
        version = self._complete_scope()
        self.cycle = answer = self._make_answer(keep_alive=version == "1.1" and self.parser.should_keep_alive())
        # Trailers come through the same callback. They are bounded like headers, and no application sees them.
        self.headers = []
        self._parsing = BODY
        self._await_body()
        if self._active is None:
            if not self._turn_away(answer):
                self._start(answer, self.app)
        else:
            self.flow.pause_reading()
            self.pipeline.appendleft((answer, self.app))

    def on_message_complete(self) -> None:
        if self.parser.should_upgrade():
            return
        self._parsing = BETWEEN
        self.num_parsed += 1
        if self._active is None:
            # The request was answered before its body had arrived.
            self.deadline = self._door.now + self._bounds.keep_alive_s
            return
        self.deadline = NEVER
        if not self.cycle.response_complete:
            self.cycle.more_body = False
            self.cycle.message_event.set()

    # Answer callbacks.

    def on_response_complete(self) -> None:
        self.server_state.total_requests += 1
        answered, self._active = self._active, None
        if answered is not None:
            # An idle connection must not hold the last request's body.
            answered.body = bytearray()
            answered.scope.pop(REQUEST_BODY, None)  # type: ignore[misc]
        if self.transport.is_closing():
            return
        if answered is not None and not answered.keep_alive:
            return self._end()
        self.flow.resume_reading()
        if self.pipeline:
            waiting, app = self.pipeline.pop()
            self._start(waiting, app)  # type: ignore[arg-type]
            if self._parsing == BODY:
                # None of its body was read while it waited.
                self._await_body()
        elif self._parsing == DEAF:
            self._end()
        elif self._parsing == BETWEEN:
            waits_s = _LAST_WAIT_S if is_leaving(self.server_state) else self._bounds.keep_alive_s
            self.deadline = self._door.now + waits_s
        elif self._parsing == HEAD:
            self.deadline = self._door.now + self._bounds.head_s

    # Called by the sweep.

    @property
    def is_idle(self) -> bool:
        """It waits for a next request."""
        return self.num_parsed > 0 and self._parsing == BETWEEN and self._active is None and not self._is_ending

    @property
    def is_silent(self) -> bool:
        """Nothing came since it connected, although there was time enough."""
        is_new = self._door.now < self._phase_began + SILENT_S
        return self.num_parsed == 0 and self._parsing == BETWEEN and not self._is_ending and not is_new

    def expire(self) -> None:
        """The deadline of the connection's current phase has passed."""
        if self._is_ending:
            self._expire_ending()
        elif self._parsing == BODY:
            self._expire_body()
        elif self._active is not None:
            self.deadline = NEVER
        elif self._parsing == HEAD and self._head_bytes:
            self._refuse(HeadTimeout(self._bounds.head_s), "slow headers")
        else:
            self._end()

    def cut(self) -> None:
        """End the connection now, discarding unsent data. The request under way is cancelled as if the client had
        left."""
        self._forget_requests()
        self.transport.abort()

    def _expire_ending(self) -> None:
        patient_until = self._phase_began + self._bounds.stalled_s
        if self.transport.get_write_buffer_size() and self._door.now < patient_until:
            self.deadline = patient_until
        else:
            self.cut()

    def _expire_body(self) -> None:
        now, body_s = self._door.now, self._bounds.body_s
        granted_until = self._phase_began + body_s + self._wire_bytes / MIN_BYTES_PER_S
        if self.flow.read_paused or self.cycle.waiting_for_100_continue:
            # The client is waiting for us.
            self._await_body()
        elif granted_until > now:
            self.deadline = granted_until
        else:
            self._refuse(BodyTimeout(f"the body did not arrive within {body_s:g} s"), "slow body")

    # Requests.

    def _make_answer(self, *, keep_alive: bool) -> Answer:
        answer = Answer(
            scope=self.scope,
            transport=self.transport,
            flow=self.flow,
            logger=self.logger,
            access_logger=self.access_logger,
            access_log=False,
            default_headers=self.server_state.default_headers,
            message_event=Signal(),  # type: ignore[arg-type]
            expect_100_continue=self.expect_100_continue,
            keep_alive=keep_alive,
            on_response=self.on_response_complete,
        )
        answer.write_batch = self._door.write_batch
        return answer

    def _start(self, answer: Answer, app: ASGI3Application) -> None:
        self._active = answer
        if self._parsing == BETWEEN:
            self.deadline = NEVER
        self._start_asgi_task(answer, app)

    def _turn_away(self, answer: Answer) -> bool:
        """Refuse the request here if the front door says so; returns whether it was refused. Starting a task and an
        application would cost as much as everything else."""
        if self._door.turn_away is None or not answer.can_be_told_at_once:
            return False
        refusal = self._door.turn_away(self.scope)
        if refusal is None:
            return False
        self._active = answer
        answer.tell(refusal)
        return True

    def _await_body(self) -> None:
        self._wire_bytes = self._body_bytes = self._num_parts = 0
        self._phase_began = self._door.now
        self.deadline = self._phase_began + self._bounds.body_s

    def _forget_requests(self) -> None:
        """Cancel all requests: the client no longer waits for an answer."""
        answer, self._active = self._active, None
        self.pipeline.clear()
        if answer is not None and not answer.response_complete:
            answer.leave()
            self.flow.resume_writing()

    # Endings.

    def _refuse(self, error: GatewayError, reason: str) -> None:
        """Answer with `error` and end the connection. If an earlier request is being answered, end after it instead."""
        self._door.note(reason)
        is_body, self._parsing = self._parsing == BODY, DEAF
        if not is_body:
            self._linger_bytes = _MAX_LINGER_BYTES // 16
        if self._active is not None and is_body and self.pipeline:
            # The body belongs to a waiting request, which is dropped before it starts.
            self.pipeline.popleft()
        elif self._active is not None and not is_body:
            self.deadline = NEVER
        elif self._active is not None and self._active.response_started:
            self.cut()
        elif is_body and self.cycle.response_complete:
            self._end()
        else:
            self._forget_requests()
            self.transport.write(self._error_bytes(error))
            self._end()

    def _error_bytes(self, error: GatewayError) -> bytes:
        return self._refusal_bytes(refusal_of(error, connection="close"))

    def _refusal_bytes(self, refusal: Refusal) -> bytes:
        default = head_block(self.server_state.default_headers)
        return STATUS_LINE[refusal.status] + default + refusal.block + b"\r\n" + refusal.body

    def _end(self) -> None:
        """Close once everything is written. Closing with unread input would send a reset, which may destroy our answer
        on its way, so further input is read and discarded for a moment."""
        self._set_ending()
        if self._parsing == BETWEEN or not self.transport.can_write_eof():
            return self.transport.close()
        self._parsing = DEAF
        self.flow.resume_reading()
        self.transport.write_eof()

    def _set_ending(self) -> None:
        self._is_ending, self._phase_began = True, self._door.now
        self.deadline = self._door.now + _LINGER_S

    def _discard(self, data: bytes) -> None:
        self._linger_bytes -= len(data)
        if self._linger_bytes < 0:
            self.cut()


def connections_through(door: FrontDoor) -> Callable[..., Connection]:
    """The factory that uvicorn calls for each connection."""

    def connect(**given: Any) -> Connection:
        return Connection(door, **given)

    return connect
