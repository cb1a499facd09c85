"""How a step shares its prompt tokens, and how many there may be beside decodes. Pure; the caller measures time."""

from collections import Counter, deque
from collections.abc import Callable
from typing import NamedTuple

from worker.engine.mixed_cost import MixedCost
from worker.engine.request import EngineRequest
from worker.engine.sequence import Chunk, Sequence

SHORT_PROMPTS = 128
"""Prompts with the best places are finished at once, whatever the pace, up to this many tokens in a step: a newcomer
with a short prompt should not wait for another step."""
_OLDEST_SHARE = 4
_FAR_BELOW = 4
_MIN_TOKENS = 16.0
_EXTRA_TIME = 0.4
_TIME_FOR_NEWCOMERS = 2.0
_MAX_GROWTH, _MAX_SHRINKAGE = 1.5, 0.5
_MEASURED_EVERY = 16
_NUM_MEASURED = 3
_MAX_DEBT_S = 1.0
"""A pause of the machine itself must not be repaid endlessly."""


def share_prefill(pending: list[Sequence], budget: int, *, limit: int, urgent: list[Sequence]) -> list[Chunk]:
    """Chunks of about `budget` tokens, at most `limit`, for sequences that have prompt tokens to compute, best first.

    The oldest sequence gets at least a quarter of the budget, so that every prompt is finished in the end. The urgent
    ones, best first, are finished even beyond the budget, as long as SHORT_PROMPTS tokens are enough for that.
    """
    if not pending:
        return []
    oldest = min(pending, key=lambda sequence: sequence.order)
    granted = {oldest: min(oldest.num_uncomputed, -(-budget // _OLDEST_SHARE))}
    spare = min(SHORT_PROMPTS, limit - granted[oldest])
    for sequence in urgent:
        spare -= sequence.num_uncomputed
        if spare < 0:
            break
        granted[sequence] = sequence.num_uncomputed
    budget -= sum(granted.values())
    for sequence in pending:
        so_far = granted.get(sequence, 0)
        more = min(sequence.num_uncomputed - so_far, budget)
        if more > 0:
            granted[sequence] = so_far + more
            budget -= more
    return [Chunk(sequence, num_tokens) for sequence, num_tokens in granted.items() if num_tokens]


def share_separate_step(
    pending: list[Sequence], running: list[Sequence], served: Callable[[EngineRequest], float], *, limit: int
) -> list[Chunk]:
    """A step without decodes for prompts that are nearly done: chunks that finish sequences of `pending`, best first,
    of at most SHORT_PROMPTS or `limit` tokens together; often none.

    A request that arrives while others decode has waited for their step already, and beside them its prompt would take
    another long step. The others lose little, since a short prompt is not paced anyway. But each separate step reads
    the model's weights once more. So it is only for tenants that run at most a quarter of an equal share and were
    served no more than any other tenant of their class, and only if no request of a better class runs.

    running: all running sequences, including the pending ones. served: the service that a request's tenant got in its
    class.
    """
    num_running_of = Counter(each.request.tenant for each in running)
    num_most = len(running) / (_FAR_BELOW * len(num_running_of))
    best = min(each.request.priority for each in running)
    least = min(served(each.request) for each in running if each.request.priority == best)
    chunks, spare = [], min(SHORT_PROMPTS, limit)
    for sequence in pending:
        request, num_left = sequence.request, sequence.num_uncomputed
        is_behind = num_running_of[request.tenant] <= num_most and served(request) <= least
        if request.priority == best and is_behind and num_left <= spare:
            chunks.append(Chunk(sequence, num_left))
            spare -= num_left
    return chunks


class _DecodeStep(NamedTuple):
    duration_s: float
    num_decodes: int


def _median(steps: deque[_DecodeStep]) -> _DecodeStep:
    """Of two steps the shorter one, since the other may include a pause of the machine."""
    return sorted(steps)[(len(steps) - 1) // 2]


class PrefillPace:
    """How many prompt tokens a step may compute beside decodes, so that a client waits for its next token at most twice
    as long as without them.

    A mixed step aims at 1.4 times the duration of a step of as many decodes alone. To this is added twice the time that
    such a step will take longer once all live requests decode together, so that of many requests that arrive at once
    the first do not keep the others waiting. Far into a long prompt a single block may take more than that: such an
    overdraft is repaid by steps without prefill, so that the aim holds on average.

    After each mixed step the number of tokens follows the measured duration: it shrinks at most by half, grows at most
    by half of itself, and is never less than a block, or than what makes a mixed step worth its fixed cost. The
    duration of decodes alone is known from steps that computed nothing else, by the number of decodes in powers of two.
    Where it is not known, and once in 16 mixed steps, a step computes no prompt, to measure it.
    """

    def __init__(self) -> None:
        self._max_tokens = _MIN_TOKENS
        self._alone: dict[int, deque[_DecodeStep]] = {}
        self._num_decodes = 0
        self._num_mixed = 0
        self._debt_s = 0.0
        self._cost = MixedCost()

    @property
    def max_tokens(self) -> int:
        """0 asks for a step of decodes alone."""
        is_known = self._num_decodes.bit_length() in self._alone
        is_due = is_known and self._num_mixed < _MEASURED_EVERY and self._debt_s <= 0
        return int(self._max_tokens) if is_due else 0

    def record(self, *, num_decodes: int, num_prefill: int, num_together: int, duration_s: float) -> None:
        """Record a computed step of num_decodes decodes and num_prefill prompt tokens, when `num_together` sequences
        could run together.

        If decodes alone were wanted, a short prompt beside them does not make the step count as a mixed one, or a
        series of short prompts would keep long ones from being computed at all. Nor is the step's duration taken for
        that of decodes alone, unless nothing better is known.
        """
        if not num_decodes:
            return
        limit = self.max_tokens
        was_to_be_alone = limit == 0
        self._num_decodes = num_decodes
        size = num_decodes.bit_length()
        if not num_prefill or (was_to_be_alone and size not in self._alone):
            self._alone.setdefault(size, deque(maxlen=_NUM_MEASURED)).append(_DecodeStep(duration_s, num_decodes))
        if not num_prefill or was_to_be_alone:
            self._num_mixed = 0
            self._debt_s -= min(self._debt_s, _EXTRA_TIME * duration_s)
        elif size in self._alone:
            self._num_mixed += 1
            alone_s = _median(self._alone[size]).duration_s
            # Short prompts beyond the pace do not count, or they would slow the pace of the long ones.
            num_paced = min(num_prefill, limit)
            extra_s = (duration_s - alone_s) * num_paced / num_prefill
            newcomers_s = max(self._together_s(num_together) - self._together_s(num_decodes), 0.0)
            wanted_s = _EXTRA_TIME * alone_s + _TIME_FOR_NEWCOMERS * newcomers_s
            self._cost.record(num_prefill, duration_s - alone_s)
            least = self._cost.least_tokens(wanted_s, least=_MIN_TOKENS)
            self._follow(num_paced, extra_s, wanted_s, least)
            if self._max_tokens <= least:
                self._debt_s = min(max(extra_s - wanted_s, 0.0), _MAX_DEBT_S)

    def _together_s(self, num_together: int) -> float:
        """The expected duration of num_together decodes alone, on a line through the smallest and largest known numbers
        of decodes."""
        smallest, largest = (_median(self._alone[size]) for size in (min(self._alone), max(self._alone)))
        more = max(largest.duration_s - smallest.duration_s, 0.0) / max(largest.num_decodes - smallest.num_decodes, 1)
        return smallest.duration_s + more * (num_together - smallest.num_decodes)

    def _follow(self, num_prefill: int, extra_s: float, wanted_s: float, least: float) -> None:
        fitting = num_prefill * wanted_s / max(extra_s, wanted_s / 10)
        most = self._max_tokens * _MAX_GROWTH
        if extra_s > wanted_s:
            shrunk = max(fitting, self._max_tokens * _MAX_SHRINKAGE, _MIN_TOKENS)
            self._max_tokens = max(min(self._max_tokens, shrunk), min(least, most))
        elif num_prefill >= self._max_tokens / 2:
            self._max_tokens = max(self._max_tokens, min(fitting, most))
