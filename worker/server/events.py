"""An answer as server-sent events."""

import logging
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing

from protocol.accounting import DONE_EVENT, accounting_comment, data_event, tokens_comment
from protocol.errors import encode_error
from protocol.responses import Usage
from worker.engine.errors import EngineError
from worker.server.answer import Answer, Piece
from worker.server.chunks import ChunkWriter
from worker.server.intake import Job
from worker.server.waiting import Waiting

log = logging.getLogger("tiergate.server")


class EventWriter:
    """Writes each event's bytes; with accounting, each with the ids that made it in a comment before its data."""

    def __init__(self, job: Job, answer: Answer) -> None:
        self._job = job
        self._answer = answer
        self._chunks = ChunkWriter(job)
        self._is_open = False

    def piece(self, piece: Piece) -> bytes:
        """Everything that a piece leads to, as one write."""
        payloads = [payload for part in piece.parts for payload in self._chunks.part(part, self._usage())]
        events = [data_event(payload) for payload in payloads]
        if self._job.wants_accounting and piece.token_ids:
            # Ids whose text is held back are told at once, in an event without data.
            events = events or [b"\n"]
            events[0] = tokens_comment(piece.token_ids) + events[0]
        return b"".join([*self._opening(), *events, *self._ending(piece)])

    def _opening(self) -> Iterator[bytes]:
        if not self._is_open:
            self._is_open = True
            yield from map(data_event, self._chunks.opening(self._usage()))

    def _ending(self, piece: Piece) -> Iterator[bytes]:
        if piece.finish_reason is None:
            return
        yield data_event(self._chunks.closing(piece.finish_reason, self._usage()))
        if self._job.includes_usage:
            yield data_event(self._chunks.final_usage(self._answer.usage))
        if self._job.wants_accounting:
            yield accounting_comment(self._answer.accounting)
        yield DONE_EVENT

    def _usage(self) -> Usage | None:
        return self._answer.usage if self._job.usage_in_each else None


async def write_events(job: Job, answer: Answer) -> AsyncGenerator[bytes]:
    """Ends with `[DONE]`, or with an error event. Raises EngineError if that comes before anything was written."""
    writer = EventWriter(job, answer)
    has_written = False
    try:
        async with aclosing(answer.pieces()) as pieces:
            async for piece in pieces:
                event = _notice(piece) if isinstance(piece, Waiting) else writer.piece(piece)
                if event:
                    has_written = True
                    yield event
    except EngineError as error:
        if not has_written:
            raise
        yield data_event(error.body())
    except Exception:
        log.exception("a stream broke")
        yield data_event(encode_error("an internal error; it was logged", type="server_error", code="internal_error"))


def _notice(waiting: Waiting) -> bytes:
    return f": waiting position={waiting.position}\n\n".encode()
