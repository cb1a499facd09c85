"""Chooses tokens on the GPU, within the step's graph: requests' parameters lie in tables there, by slot."""

import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kernels.sampling.step import IN_PROMPT, StepParameters, Wanted, choose, score
from worker.engine.admission import MOST_GPU_ASKED, MOST_GPU_LOGPROBS
from worker.engine.forbidden import allowed_words, forbidden_ids
from worker.engine.request import SamplingParams, TokenLogprobs
from worker.engine.request_slots import RequestSlots
from worker.engine.sampler import Sampled, has_penalty, history_of, uniform_for
from worker.engine.sequence import Sequence
from worker.engine.token_logprobs import Wish, wish_of
from worker.guided.masks import Masks

_MAX_BIASES = 4096
"""The most entries of a request: its biases, and the same again with the tokens that must not end it yet."""

_TYPES: dict[str, tuple[Any, Any, float]] = {
    # 8-byte fields first. Name -> type on the host, type on the GPU, value in padding rows.
    "uniform": (np.float64, torch.float64, 0),
    "temperature": (np.float32, torch.float32, 0),
    "top_p": (np.float32, torch.float32, 1),
    "min_p": (np.float32, torch.float32, 0),
    "presence": (np.float32, torch.float32, 0),
    "frequency": (np.float32, torch.float32, 0),
    "repetition": (np.float32, torch.float32, 1),
    "top_k": (np.int32, torch.int32, 0),
    "slots": (np.int32, torch.int32, -1),
    "bias_starts": (np.int32, torch.int32, 0),
    "bias_ends": (np.int32, torch.int32, 0),
    "masks": (np.int32, torch.int32, -1),
}
WORDS_A_ROW = 16
"""Words per row in a step's buffer, for all fields together."""


@dataclass(frozen=True, slots=True)
class SampleTables:
    """tokens [rows] int32: the index in `GpuSampler.last` for each row's token."""

    parameters: StepParameters
    wanted: Wanted
    tokens: Tensor


class GpuSampler:
    """As `worker.engine.sampler.Sampler`. last [slots + 1] int32: each sequence's newest token, which the next step
    reads without the host's waiting for it; the extra entry is for rows that pad a graph's batch."""

    def __init__(self, vocab_size: int, eos_token_ids: Iterable[int], *, max_seqs: int, device: torch.device) -> None:
        self._eos_token_ids = tuple(eos_token_ids)
        self._salt = secrets.randbits(64)
        self._slots = RequestSlots(max_seqs)
        self._num_biases: dict[int, tuple[int, int]] = {}
        self._forbidden: dict[int, list[int]] = {}
        self._max_seqs, self._vocab_size = max_seqs, vocab_size
        self.most_logprobs = min(MOST_GPU_LOGPROBS, vocab_size)

        def table(*shape: int, dtype: torch.dtype = torch.int32) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        self.last = table(max_seqs + 1)
        self._counts = table(max_seqs, vocab_size)
        self._bias_ids, self._bias_values = table(max_seqs * _MAX_BIASES), table(max_seqs * _MAX_BIASES).float()
        self._allowed = table(max_seqs, -(-vocab_size // 32))
        self._asked_ids = table(max_seqs, MOST_GPU_ASKED)
        self._asked_logprobs = table(max_seqs, MOST_GPU_ASKED).float()

    @property
    def words_a_row(self) -> int:
        """The most words per row that `read` needs of a step."""
        return 2 + 2 * self.most_logprobs + MOST_GPU_ASKED

    def slot(self, sequence: Sequence) -> int:
        """The index in `last` of the token that the sequence has ahead."""
        return self._slots.of(sequence)

    def fields(self, sequences: list[Sequence], num_rows: int) -> dict[str, NDArray[Any]]:
        """A step's rows for its buffer, padded to num_rows. Writes sequences that are new here to the GPU's tables;
        call `confirm` once the step is launched."""
        slots = [self._begin(sequence) for sequence in sequences]
        params = [sequence.request.sampling for sequence in sequences]
        places = [self._places(sequence, slot) for sequence, slot in zip(sequences, slots, strict=True)]
        rows: dict[str, list[Any]] = {
            "uniform": [uniform_for(sequence, self._salt) for sequence in sequences],
            "temperature": [each.temperature for each in params],
            "top_p": [each.top_p for each in params],
            "min_p": [each.min_p for each in params],
            "presence": [each.presence_penalty for each in params],
            "frequency": [each.frequency_penalty for each in params],
            "repetition": [each.repetition_penalty for each in params],
            "top_k": [max(each.top_k, 0) for each in params],
            "slots": [slot if has_penalty(each) else -1 for slot, each in zip(slots, params, strict=True)],
            "bias_starts": [start for start, _ in places],
            "bias_ends": [end for _, end in places],
            "masks": [slot if _is_masked(each) else -1 for slot, each in zip(slots, sequences, strict=True)],
        }
        padding = num_rows - len(sequences)
        found = {
            name: np.array(rows[name] + [filler] * padding, dtype=dtype) for name, (dtype, _, filler) in _TYPES.items()
        }
        asked = [slot if each.logprob_token_ids else -1 for slot, each in zip(slots, params, strict=True)]
        found["num_wanted"] = np.array([self._num_wanted(each) for each in params] + [-1] * padding, dtype=np.int32)
        found["asked"] = np.array(asked + [-1] * padding, dtype=np.int32)
        found["tokens"] = np.array(slots + [self._max_seqs] * padding, dtype=np.int32)
        return found

    def allow(self, sequences: list[Sequence], masks: Masks) -> None:
        """Upload the masks of a step's sequences that have a grammar; call between `fields` and `choose`."""
        for row, words in zip(masks.rows, masks.words, strict=True):
            sequence = sequences[row]
            if _is_limited(sequence.request.sampling):
                words &= allowed_words(sequence, forbidden_ids(sequence), self._vocab_size)
            self._allow(self._slots.of(sequence), words)

    def confirm(self, sequences: list[Sequence]) -> None:
        self._slots.confirm(sequences)

    def doubt(self, sequences: list[Sequence]) -> None:
        """The sequences' step was not launched to the end, so their table rows are written again."""
        self._slots.doubt(sequences)

    def tables(self, on_gpu: dict[str, Tensor]) -> SampleTables:
        """on_gpu: the values from `fields`, as words."""
        parameters = StepParameters(
            **{name: on_gpu[name].view(dtype) for name, (_, dtype, _) in _TYPES.items()},
            counts=self._counts,
            bias_ids=self._bias_ids,
            bias_values=self._bias_values,
            allowed=self._allowed,
        )
        wanted = Wanted(on_gpu["num_wanted"], on_gpu["asked"], self._asked_ids, self._asked_logprobs)
        return SampleTables(parameters, wanted, on_gpu["tokens"])

    def choose(self, logits: Tensor, tables: SampleTables) -> Tensor:
        """Returns words for `wanted_words`, int32 on the GPU, and puts the tokens into `last`. Does not change logits
        [rows, vocab]."""
        ids = choose(logits, tables.parameters)
        self.last.index_copy_(0, tables.tokens.long(), ids.clamp(min=0))
        own, top, top_ids = score(logits, ids, tables.wanted, most=self.most_logprobs)
        return torch.cat((ids, own.view(torch.int32), top.view(torch.int32).view(-1), top_ids.view(-1)))

    def wanted_words(self, words: Tensor, sequences: list[Sequence], num_rows: int) -> Tensor:
        """The words that `read` needs, from those that `choose` returned for a step of num_rows rows."""
        wishes = {sequence: wish for sequence in sequences if (wish := wish_of(sequence.request.sampling))}
        if not wishes:
            return words[:num_rows]
        asked = [
            self._asked_logprobs[self._slots.of(sequence), : len(wish.ids)].view(torch.int32)
            for sequence, wish in wishes.items()
            if wish.ids
        ]
        return torch.cat((words, *asked)) if asked else words

    def read(self, words: NDArray[np.int32], wishes: list[Wish | None], num_rows: int) -> list[Sampled | None]:
        """words: from `wanted_words`; wishes: one for each sequence."""
        n, most = num_rows, self.most_logprobs
        ids = words[: len(wishes)].tolist()
        if len(words) == n:
            return [Sampled(token_id) if token_id >= 0 else None for token_id in ids]
        own = words[n : 2 * n].view(np.float32)
        top = words[2 * n : (2 + most) * n].view(np.float32).reshape(n, most)
        top_ids = words[(2 + most) * n : (2 + 2 * most) * n].reshape(n, most)
        asked = words[(2 + 2 * most) * n :].view(np.float32)
        found: list[Sampled | None] = []
        for i, (token_id, wish) in enumerate(zip(ids, wishes, strict=True)):
            scored = None
            if wish is not None:
                values, asked = asked[: len(wish.ids)], asked[len(wish.ids) :]
                of_ids = zip(wish.ids, values.tolist(), strict=True)
                likely = zip(top_ids[i, : wish.num_top].tolist(), top[i, : wish.num_top].tolist(), strict=True)
                scored = TokenLogprobs(logprob=float(own[i]), top=tuple(of_ids if wish.ids else likely))
            found.append(Sampled(token_id, scored) if token_id >= 0 else None)
        return found

    def _num_wanted(self, params: SamplingParams) -> int:
        wish = wish_of(params)
        return -1 if wish is None else len(wish.ids) or min(wish.num_top, self.most_logprobs)

    def _begin(self, sequence: Sequence) -> int:
        slot, is_ready = self._slots.take(sequence)
        if not is_ready:
            self._write_biases(sequence, slot)
            self._forbidden.pop(slot, None)
            if has_penalty(sequence.request.sampling):
                self._write_counts(sequence, slot)
            if asked := sequence.request.sampling.logprob_token_ids:
                self._asked_ids[slot, : len(asked)].copy_(torch.tensor(asked, dtype=torch.int32), non_blocking=True)
        if sequence.matcher is None and _is_limited(sequence.request.sampling):
            self._write_allowed(sequence, slot)
        return slot

    def _places(self, sequence: Sequence, slot: int) -> tuple[int, int]:
        """The range of the sequence's biases that apply now."""
        num_plain, num_early = self._num_biases[slot]
        start = slot * _MAX_BIASES
        if sequence.must_not_end:
            return start + num_plain, start + num_plain + num_early
        return start, start + num_plain

    def _write_biases(self, sequence: Sequence, slot: int) -> None:
        """Writes first the biases that the request asks for, then all that apply while its answer must not end."""
        params = sequence.request.sampling
        early: dict[int, float] = {}
        if params.min_tokens:
            ends = (*self._eos_token_ids, *params.stop_token_ids)
            early = params.logit_bias | dict.fromkeys(ends, float("-inf"))
        ids, values = ([*params.logit_bias, *early], [*params.logit_bias.values(), *early.values()])
        if len(ids) > _MAX_BIASES:
            raise ValueError(f"{len(ids)} biased tokens are more than {_MAX_BIASES}")
        self._num_biases[slot] = len(params.logit_bias), len(early)
        if ids:
            place = slice(slot * _MAX_BIASES, slot * _MAX_BIASES + len(ids))
            self._bias_ids[place].copy_(torch.tensor(ids, dtype=torch.int32), non_blocking=True)
            self._bias_values[place].copy_(torch.tensor(values, dtype=torch.float32), non_blocking=True)

    def _write_allowed(self, sequence: Sequence, slot: int) -> None:
        """Writes the mask again if other tokens are forbidden than at the sequence's last step."""
        forbidden = forbidden_ids(sequence)
        if self._forbidden.get(slot) != forbidden:
            self._allow(slot, allowed_words(sequence, forbidden, self._vocab_size))
            self._forbidden[slot] = forbidden

    def _allow(self, slot: int, words: NDArray[np.int32]) -> None:
        # Not from pinned memory, of which each copy in flight would need its own: the driver has the words on return.
        self._allowed[slot].copy_(torch.from_numpy(words), non_blocking=True)

    def _write_counts(self, sequence: Sequence, slot: int) -> None:
        """Writes the tokens that the sequence has used, in the form of `StepParameters.counts`."""
        history = history_of(sequence)
        ids, used = (torch.from_numpy(np.array(each, dtype=np.int64)) for each in (history.ids, history.counts))
        counts, device = self._counts[slot].zero_(), self._counts.device
        counts.index_copy_(0, ids.to(device, non_blocking=True), (used | IN_PROMPT).int().to(device, non_blocking=True))


def _is_limited(params: SamplingParams) -> bool:
    return params.allowed_token_ids is not None or bool(params.bad_words)


def _is_masked(sequence: Sequence) -> bool:
    return sequence.matcher is not None or _is_limited(sequence.request.sampling)
