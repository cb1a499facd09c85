"""The next token of every sequence of a batch, by its own parameters and its own randomness."""

import secrets
from collections.abc import Iterable

import torch
from torch import Tensor

from kernels.sampling import greedy, penalize, sample
from worker.engine.randomness import uniform
from worker.engine.request import SamplingParams
from worker.engine.sequence import Sequence


class Sampler:
    """Sequences without a seed draw from a secret of this process and their order of arrival, so that a preempted one
    goes on as it began."""

    def __init__(self, vocab_size: int, eos_token_ids: Iterable[int]) -> None:
        self._vocab_size = vocab_size
        self._eos_token_ids = tuple(eos_token_ids)
        self._salt = secrets.randbits(64)

    def choose(self, logits: Tensor, sequences: list[Sequence]) -> list[int | None]:
        """One id a row of logits [n, vocab] fp32, changed in place; None where the logits are not finite."""
        with torch.inference_mode():
            self._adjust(logits, sequences)
            best, ids = greedy(logits)
            drawn = [i for i, sequence in enumerate(sequences) if sequence.request.sampling.temperature > 0]
            if drawn:
                rows = torch.tensor(drawn)
                ids[rows] = self._draw(logits[rows], [sequences[i] for i in drawn])
            is_finite = best.isfinite().tolist()
            return [token if ok else None for token, ok in zip(ids.tolist(), is_finite, strict=True)]

    def _draw(self, logits: Tensor, sequences: list[Sequence]) -> Tensor:
        params = [sequence.request.sampling for sequence in sequences]
        return sample(
            logits,
            temperature=torch.tensor([p.temperature for p in params]),
            top_k=torch.tensor([max(p.top_k, 0) for p in params]),
            top_p=torch.tensor([p.top_p for p in params]),
            min_p=torch.tensor([p.min_p for p in params]),
            uniform=torch.tensor([self._uniform(sequence) for sequence in sequences], dtype=torch.float64),
        )

    def _uniform(self, sequence: Sequence) -> float:
        seed = sequence.request.sampling.seed
        if seed is None:
            return uniform(self._salt + sequence.order, sequence.num_output)
        return uniform(seed, sequence.num_output)

    def _adjust(self, logits: Tensor, sequences: list[Sequence]) -> None:
        for row, sequence in zip(logits, sequences, strict=True):
            params = sequence.request.sampling
            if _has_penalty(params):
                self._penalize(row, sequence)
            if params.logit_bias:
                ids = torch.tensor(list(params.logit_bias))
                row[ids] += torch.tensor(list(params.logit_bias.values()), dtype=row.dtype)
            if sequence.num_output < params.min_tokens:
                row[list({*self._eos_token_ids, *params.stop_token_ids})] = float("-inf")

    def _penalize(self, row: Tensor, sequence: Sequence) -> None:
        params = sequence.request.sampling
        output = torch.tensor(sequence.token_ids[sequence.num_prompt :], dtype=torch.int64)
        counts = torch.bincount(output, minlength=self._vocab_size)
        seen = counts > 0
        seen[torch.tensor(sequence.token_ids[: sequence.num_prompt])] = True
        penalize(
            row[None],
            counts[None],
            seen[None],
            *(
                torch.tensor([[value]])
                for value in (params.presence_penalty, params.frequency_penalty, params.repetition_penalty)
            ),
        )


def _has_penalty(params: SamplingParams) -> bool:
    return bool(params.presence_penalty or params.frequency_penalty or params.repetition_penalty != 1.0)
