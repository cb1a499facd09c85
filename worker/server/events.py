"""An answer as server-sent events."""

import logging
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from typing import Protocol

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


class EventWriter(Protocol):
    """num_untold: how many ids from the engine are not in any event sent yet."""

    num_untold: int

    def add(self, pieces: list[Piece]) -> bytes:
        """The events to send for `pieces`, as one write; b"" for none. Once the answer is finished, they are the last
        ones."""


class StreamWriter:
    """Writes each piece's events; with accounting, a comment in the last of them reports the piece's ids."""

    def __init__(self, job: Job, answer: Answer, tokenizer: Tokenizer) -> None:
        self._job = job
        self._answer = answer
        self._chunks = ChunkWriter(job, tokenizer)
        self._num_shown = 0
        self.num_untold = 0

    def add(self, pieces: list[Piece]) -> bytes:
        self.num_untold += sum(len(piece.token_ids) for piece in pieces if not piece.is_given)
        return b"".join([part for piece in pieces for part in self._piece(piece)] + list(self._ending()))

    def _piece(self, piece: Piece) -> list[bytes]:
        before = self._usage()
        self._num_shown += len(piece.token_ids)
        if piece.is_given:
            self._chunks.skip(piece)
            return []
        usage = self._usage()
        payloads = [*self._chunks.opening(piece.index, before), *self._chunks.piece(piece, usage)]
        if piece.finish_reason is not None:
            payloads.append(self._chunks.closing(piece.index, piece.finish_reason, usage))
        events = list(map(data_event, payloads))
        if self._job.wants_accounting and piece.token_ids:
            # Ids whose text is held back are reported at once, in an event without data.
            events = events or [b"\n"]
            events[-1] = tokens_comment(piece.token_ids, index=piece.index) + events[-1]
        return events

    def _ending(self) -> Iterator[bytes]:
        if not self._answer.is_finished:
            return
        if self._job.includes_usage:
            yield data_event(self._chunks.final_usage(self._answer.usage))
        if self._job.wants_accounting:
            yield accounting_comment(self._answer.accounting)
        yield DONE_EVENT

    def _usage(self) -> Usage | None:
        """Usage of the tokens up to this chunk, including those of other choices."""
        return self._answer.usage_at(self._num_shown) if self._job.usage_in_each else None


async def write_events(writer: EventWriter, answer: Answer, replica: Replica) -> AsyncGenerator[bytes]:
    """Ends with `[DONE]`, or with an error event, which is counted. An error before the first write is raised instead.

    An event counts as sent when the next one is requested; ids in no event sent count as discarded.
    """
    has_written = False
    try:
        async with aclosing(answer.pieces()) as arrivals:
            async for arrival in arrivals:
                event = _notice(arrival) if isinstance(arrival, Waiting) else writer.add(arrival)
                if event:
                    has_written = True
                    yield event
                    answer.note_told(writer.num_untold)
                    writer.num_untold = 0
    except EngineError as error:
        if not has_written:
            raise
        replica.metrics.count_failed(error.code or "engine_error")
        yield data_event(error.body())
    except Exception:
        if not has_written:
            raise
        log.exception("a stream broke")
        replica.metrics.count_failed("internal_error")
        yield data_event(encode_error("an internal error; it was logged", type="server_error", code="internal_error"))
    finally:
        answer.discard(writer.num_untold)


def _notice(waiting: Waiting) -> bytes:
    return f": waiting position={waiting.position}\n\n".encode()
