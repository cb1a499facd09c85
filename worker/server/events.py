"""An answer as server-sent events."""

import logging
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing

from protocol.accounting import DONE_EVENT, accounting_comment, data_event, tokens_comment
from protocol.errors import encode_error
from protocol.responses import Usage
from text.tokenizer import Tokenizer
from worker.engine.errors import EngineError
from worker.server.answer import Answer
from worker.server.choice import Piece
from worker.server.chunks import ChunkWriter
from worker.server.intake import Job
from worker.server.replica import Replica
from worker.server.waiting import Waiting

log = logging.getLogger("tiergate.server")


class EventWriter:
    """Writes each event's bytes; with accounting, each with the ids that made it in a comment before its data."""

    def __init__(self, job: Job, answer: Answer, tokenizer: Tokenizer) -> None:
        self._job = job
        self._answer = answer
        self._chunks = ChunkWriter(job, tokenizer)

    def pieces(self, pieces: list[Piece]) -> bytes:
        """Everything that came at a time, as one write."""
        return b"".join([part for piece in pieces for part in self._piece(piece)] + list(self._ending()))

    def _piece(self, piece: Piece) -> Iterator[bytes]:
        yield from map(data_event, self._chunks.opening(piece.index, self._usage()))
        events = list(map(data_event, self._chunks.piece(piece, self._usage())))
        if self._job.wants_accounting and piece.token_ids:
            # Ids whose text is held back are told at once, in an event without data.
            events = events or [b"\n"]
            events[0] = tokens_comment(piece.token_ids) + events[0]
        yield from events
        if piece.finish_reason is not None:
            yield data_event(self._chunks.closing(piece.index, piece.finish_reason, self._usage()))

    def _ending(self) -> Iterator[bytes]:
        if not self._answer.is_finished:
            return
        if self._job.includes_usage:
            yield data_event(self._chunks.final_usage(self._answer.usage))
        if self._job.wants_accounting:
            yield accounting_comment(self._answer.accounting)
        yield DONE_EVENT

    def _usage(self) -> Usage | None:
        return self._answer.usage if self._job.usage_in_each else None


async def write_events(job: Job, answer: Answer, replica: Replica) -> AsyncGenerator[bytes]:
    """Ends with `[DONE]`, or with an error event, which is counted. Raises EngineError before anything was written."""
    writer = EventWriter(job, answer, replica.bundle.tokenizer)
    has_written = False
    try:
        async with aclosing(answer.pieces()) as arrivals:
            async for arrival in arrivals:
                event = _notice(arrival) if isinstance(arrival, Waiting) else writer.pieces(arrival)
                if event:
                    has_written = True
                    yield event
    except EngineError as error:
        if not has_written:
            raise
        replica.metrics.count_failed(error.code or "engine_error")
        yield data_event(error.body())
    except Exception:
        log.exception("a stream broke")
        replica.metrics.count_failed("internal_error")
        yield data_event(encode_error("an internal error; it was logged", type="server_error", code="internal_error"))


def _notice(waiting: Waiting) -> bytes:
    return f": waiting position={waiting.position}\n\n".encode()
