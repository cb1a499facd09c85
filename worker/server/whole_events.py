"""A non-streamed answer whose token ids are reported while it is generated, in `protocol.accounting`'s events."""

import time

from protocol.accounting import DONE_EVENT, TELL_EVERY_S, accounting_comment, data_event, tokens_comment
from text.tokenizer import Tokenizer
from worker.server.answer import Answer
from worker.server.choice import Piece
from worker.server.chunks import encode_whole
from worker.server.intake import Job


class WholeAnswerWriter:
    """Collects the pieces, reports their ids every TELL_EVERY_S, and writes the answer once the last piece arrives."""

    def __init__(self, job: Job, answer: Answer, tokenizer: Tokenizer) -> None:
        self._job = job
        self._answer = answer
        self._tokenizer = tokenizer
        self._told_at = job.arrived_at
        self._pieces: list[Piece] = []
        self._untold_ids: dict[int, list[int]] = {}
        self.num_untold = 0

    def add(self, pieces: list[Piece]) -> bytes:
        self._pieces += pieces
        for piece in pieces:
            if piece.token_ids and not piece.is_given:
                self._untold_ids.setdefault(piece.index, []).extend(piece.token_ids)
                self.num_untold += len(piece.token_ids)
        if self._answer.is_finished:
            return self._tell() + self._ending()
        now = time.monotonic()
        if now - self._told_at < TELL_EVERY_S or not self._untold_ids:
            return b""
        self._told_at = now
        return self._tell() + b"\n"

    def _tell(self) -> bytes:
        untold, self._untold_ids = self._untold_ids, {}
        return b"".join([tokens_comment(token_ids, index=index) for index, token_ids in untold.items()])

    def _ending(self) -> bytes:
        body = encode_whole(self._job, self._pieces, self._answer.usage, self._tokenizer, self._answer.prompt_logprobs)
        return accounting_comment(self._answer.accounting) + data_event(body) + DONE_EVENT
