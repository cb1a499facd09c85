"""Chooses the next token of every sequence in a batch, by the sequence's own parameters and randomness."""

import secrets
from array import array
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.sampling import forbid, greedy, penalize, sample
from text.watermark import Watermark
from worker.engine.forbidden import forbidden_ids
from worker.engine.history import TokenHistory
from worker.engine.randomness import uniform
from worker.engine.request import SamplingParams, TokenLogprobs
from worker.engine.sequence import Sequence
from worker.engine.token_logprobs import read_logprobs, wish_of
from worker.guided.masks import Masks

_GREEDY_BELOW = 1e-5
"""Lower temperatures would scale logits beyond what fp32 can hold; only the likeliest token is left by then."""


@dataclass(frozen=True, slots=True)
class Sampled:
    """The next token of one sequence; logprobs if its request asked for them."""

    token_id: int
    logprobs: TokenLogprobs | None = None


class Sampler:
    """Sequences without a seed draw from a secret of this process and their order of arrival, so that a preempted one
    continues as it began."""

    def __init__(self, vocab_size: int, eos_token_ids: Iterable[int], *, watermark: Watermark | None = None) -> None:
        self._vocab_size = vocab_size
        self._eos_token_ids = tuple(eos_token_ids)
        self._watermark = watermark
        self._salt = secrets.randbits(64)

    def choose(self, logits: Tensor, sequences: list[Sequence], masks: Masks | None = None) -> list[Sampled | None]:
        """The next token for each row of logits [n, vocab] fp32, which are changed in place; None where a row is not
        finite or no token is allowed."""
        with torch.inference_mode():
            wishes = {i: wish for i, each in enumerate(sequences) if (wish := wish_of(each.request.sampling))}
            asking = list(wishes)
            raw = logits[torch.tensor(asking)] if asking else None
            self._adjust(logits, sequences)
            if masks is not None:
                forbid(logits, masks.rows, torch.from_numpy(masks.words))
            best, ids = greedy(logits)
            drawn = [i for i, sequence in enumerate(sequences) if _is_random(sequence.request.sampling)]
            if drawn:
                if self._watermark is not None:
                    self._mark(logits, drawn, sequences, self._watermark)
                # If all rows are drawn, no copy is made of them.
                rows = slice(None) if len(drawn) == len(sequences) else torch.tensor(drawn)
                ids[rows] = self._draw(logits[rows], [sequences[i] for i in drawn])
            found: dict[int, TokenLogprobs] = {}
            if raw is not None:
                chosen = ids[torch.tensor(asking)]
                found = dict(zip(asking, read_logprobs(raw, chosen, list(wishes.values())), strict=True))
            is_finite = best.isfinite().tolist()
            return [
                Sampled(token_id, found.get(i)) if is_finite[i] else None for i, token_id in enumerate(ids.tolist())
            ]

    def _draw(self, logits: Tensor, sequences: list[Sequence]) -> Tensor:
        params = [sequence.request.sampling for sequence in sequences]
        return sample(
            logits,
            temperature=torch.tensor([p.temperature for p in params], dtype=torch.float32),
            top_k=torch.tensor([min(max(p.top_k, 0), self._vocab_size) for p in params]),
            top_p=torch.tensor([p.top_p for p in params], dtype=torch.float32),
            min_p=torch.tensor([p.min_p for p in params], dtype=torch.float32),
            uniform=torch.tensor([uniform_for(sequence, self._salt) for sequence in sequences], dtype=torch.float64),
        )

    def _mark(self, logits: Tensor, rows: list[int], sequences: list[Sequence], watermark: Watermark) -> None:
        """Biases drawn rows only, after the likeliest tokens were found: greedy requests get those unchanged."""
        vocab_size = logits.shape[1]
        for row in rows:
            logits[row] += torch.from_numpy(watermark.bias(sequences[row].token_ids[-1], vocab_size))

    def _adjust(self, logits: Tensor, sequences: list[Sequence]) -> None:
        """Apply penalties, biases, min_tokens and bad words, allowed tokens, in this order. Each touches only the
        logits it concerns, in all rows at once."""
        penalized = _Places()
        biased, forbidden = _Places(), _Places()
        counts, biases = array("q"), array("f")
        restricted: list[tuple[int, array[int]]] = []
        for row, sequence in enumerate(sequences):
            params = sequence.request.sampling
            if has_penalty(params):
                history = history_of(sequence)
                penalized.add(row, history.ids)
                counts.extend(history.counts)
            if params.logit_bias:
                biased.add(row, array("q", params.logit_bias))
                biases.extend(array("f", params.logit_bias.values()))
            if sequence.must_not_end:
                forbidden.add(row, array("q", {*self._eos_token_ids, *params.stop_token_ids}))
            if params.bad_words:
                forbidden.add(row, array("q", forbidden_ids(sequence)))
            if params.allowed_token_ids is not None:
                restricted.append((row, params.allowed_token_ids))
        if penalized.ids:
            _penalize(logits, penalized, counts, [sequence.request.sampling for sequence in sequences])
        if biased.ids:
            logits[biased.tensors()] += torch.frombuffer(biases, dtype=torch.float32)
        if forbidden.ids:
            logits[forbidden.tensors()] = float("-inf")
        for row, ids in restricted:
            allowed = torch.frombuffer(ids, dtype=torch.int64)
            kept = logits[row, allowed]
            logits[row] = float("-inf")
            logits[row, allowed] = kept


class _Places:
    """Places in a matrix, collected row by row."""

    def __init__(self) -> None:
        self.ids = array("q")
        self._rows: list[int] = []
        self._lens: list[int] = []

    def add(self, row: int, ids: "array[int]") -> None:
        self._rows.append(row)
        self._lens.append(len(ids))
        self.ids.extend(ids)

    def tensors(self) -> tuple[Tensor, Tensor]:
        """Rows and ids, int64."""
        rows = torch.tensor(self._rows).repeat_interleave(torch.tensor(self._lens))
        return rows, torch.frombuffer(self.ids, dtype=torch.int64)


def _penalize(logits: Tensor, places: _Places, counts: "array[int]", params: list[SamplingParams]) -> None:
    rows, ids = places.tensors()
    penalties = [(p.presence_penalty, p.frequency_penalty, p.repetition_penalty) for p in params]
    presence, frequency, repetition = torch.tensor(penalties)[rows].unbind(dim=1)
    penalize(logits, rows, ids, torch.frombuffer(counts, dtype=torch.int64), presence, frequency, repetition)


def uniform_for(sequence: Sequence, salt: int) -> float:
    """The random number that draws the sequence's next token. salt: the sampler's, for sequences without a seed."""
    seed = sequence.request.sampling.seed
    return uniform(salt + sequence.order if seed is None else seed, sequence.next_index)


def history_of(sequence: Sequence) -> TokenHistory:
    if sequence.history is None:
        sequence.history = TokenHistory(sequence.token_ids[: sequence.num_prompt])
    sequence.history.catch_up(sequence.token_ids)
    return sequence.history


def _is_random(params: SamplingParams) -> bool:
    return params.temperature >= _GREEDY_BELOW


def has_penalty(params: SamplingParams) -> bool:
    return bool(params.presence_penalty or params.frequency_penalty or params.repetition_penalty != 1.0)
