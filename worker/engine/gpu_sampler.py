"""The next token of every sequence of a batch, chosen on the GPU; one wait for it a step."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kernels.sampling.step import IN_PROMPT, StepParameters, choose
from worker.engine.sampler import Sampled, Sampler, has_penalty, history_of, read_logprobs
from worker.engine.sequence import Sequence
from worker.engine.step_buffer import StepBuffer

_MAX_BIASES = 2048
"""Of a row; a request may have 1024 biases, and some tokens that it must not end with."""


class GpuSampler(Sampler):
    """As `Sampler`, for logits on a GPU, which stay as they are."""

    def __init__(self, vocab_size: int, eos_token_ids: Iterable[int], *, max_seqs: int, device: torch.device) -> None:
        super().__init__(vocab_size, eos_token_ids)
        self._buffer = StepBuffer(max_seqs * (2 * _MAX_BIASES + 16) + 64, device)
        self._nothing_used = torch.zeros((1, vocab_size), dtype=torch.int32, device=device)
        self._all_allowed = torch.full((1, -(-vocab_size // 32)), -1, dtype=torch.int32, device=device)

    def choose(self, logits: Tensor, sequences: list[Sequence]) -> list[Sampled | None]:
        if not sequences:
            return []
        with torch.inference_mode():
            ids = choose(logits, self._parameters(logits, sequences))
            chosen = ids.tolist()
            wishes = [sequence.request.sampling.num_logprobs for sequence in sequences]
            asking = [i for i, num in enumerate(wishes) if num is not None and chosen[i] >= 0]
            found = {}
            if asking:
                rows = torch.tensor(asking, device=logits.device)
                num_tops = [wishes[i] or 0 for i in asking]
                scored = read_logprobs(logits[rows].float(), ids[rows].long(), num_tops)
                found = dict(zip(asking, scored, strict=True))
        return [Sampled(token_id, found.get(i)) if token_id >= 0 else None for i, token_id in enumerate(chosen)]

    def _parameters(self, logits: Tensor, sequences: list[Sequence]) -> StepParameters:
        params = [sequence.request.sampling for sequence in sequences]
        penalised = [i for i, each in enumerate(params) if has_penalty(each)]
        slots = np.full(len(params), -1, dtype=np.int32)
        slots[penalised] = np.arange(len(penalised))
        biases = [self._biases(sequence) for sequence in sequences]
        words: dict[str, NDArray[Any]] = {
            # First what has 8 bytes.
            "uniform": np.array([self._uniform(sequence) for sequence in sequences], dtype=np.float64),
            "temperature": np.array([each.temperature for each in params], dtype=np.float32),
            "top_p": np.array([each.top_p for each in params], dtype=np.float32),
            "min_p": np.array([each.min_p for each in params], dtype=np.float32),
            "presence": np.array([each.presence_penalty for each in params], dtype=np.float32),
            "frequency": np.array([each.frequency_penalty for each in params], dtype=np.float32),
            "repetition": np.array([each.repetition_penalty for each in params], dtype=np.float32),
            "top_k": np.array([max(each.top_k, 0) for each in params], dtype=np.int32),
            "slots": slots,
            "bias_starts": np.cumsum([0, *map(len, biases)], dtype=np.int32),
            "bias_ids": np.array([token for each in biases for token in each], dtype=np.int32),
            "bias_values": np.array([value for each in biases for value in each.values()], dtype=np.float32),
        }
        on_gpu = self._buffer.put({name: (each, each.nbytes // 4) for name, each in words.items()})
        types = {name: torch.from_numpy(each[:0]).dtype for name, each in words.items()}
        return StepParameters(
            **{name: each.view(types[name]) for name, each in on_gpu.items()},
            counts=self._counts(logits.device, [sequences[i] for i in penalised]),
            allowed=self._all_allowed.expand(len(sequences), -1),
        )

    def _biases(self, sequence: Sequence) -> dict[int, float]:
        params = sequence.request.sampling
        biases = dict(params.logit_bias)
        if sequence.num_output < params.min_tokens:
            biases |= dict.fromkeys((*self._eos_token_ids, *params.stop_token_ids), float("-inf"))
        return biases

    def _counts(self, device: torch.device, sequences: list[Sequence]) -> Tensor:
        """What each has used, as `StepParameters.counts` wants it."""
        if not sequences:
            return self._nothing_used
        counts = torch.zeros((len(sequences), self._vocab_size), dtype=torch.int32, device=device)
        for row, sequence in enumerate(sequences):
            history = history_of(sequence)
            ids, used = (torch.from_numpy(np.array(each, dtype=np.int64)) for each in (history.ids, history.counts))
            counts[row, ids.to(device)] = (used | IN_PROMPT).int().to(device)
        return counts
