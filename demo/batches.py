"""Conversations as token ids, grouped by length into batches with hardly any padding."""

import os
import random
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor

from demo.chat import END, GENERATION_PROMPT, render_chat
from demo.corpus.items import Item

SHORT_TOKENS = 48


@dataclass(frozen=True)
class Encoded:
    """All conversations in a row: `ids` [tokens] uint16, `is_answer` [tokens] bool, bounds in `starts` [items + 1]."""

    ids: np.ndarray
    is_answer: np.ndarray
    starts: np.ndarray

    def save(self, path: Path) -> None:
        """Replace the file atomically, since two training runs may prepare the same pass at the same time."""
        unfinished = path.with_name(f"{path.stem}.{os.getpid()}.npz.tmp")
        with unfinished.open("wb") as file:
            np.savez(file, ids=self.ids, is_answer=self.is_answer, starts=self.starts)
        unfinished.replace(path)

    @classmethod
    def load(cls, path: Path) -> "Encoded":
        with np.load(path) as file:
            return cls(file["ids"], file["is_answer"], file["starts"])


@dataclass(frozen=True)
class Batch:
    """ids [rows, tokens], padded at the end; `positions` index the flat ids, `targets` are the tokens after them."""

    ids: Tensor
    positions: Tensor
    targets: Tensor


def encode_items(tokenizer: Tokenizer, items: list[Item]) -> Encoded:
    """Encode the items. An answer is everything after an assistant header, up to and including the end mark."""
    header, end = tokenizer.encode(GENERATION_PROMPT).ids, tokenizer.token_to_id(END)
    ids: list[int] = []
    is_answer: list[bool] = []
    starts = [0]
    for chunk in range(0, len(items), 4096):
        texts = [render_chat(item.messages, item.tools) for item in items[chunk : chunk + 4096]]
        for encoding in tokenizer.encode_batch(texts):
            ids += encoding.ids
            is_answer += mark_answers(encoding.ids, header=header, end=end)
            starts.append(len(ids))
    return Encoded(np.array(ids, np.uint16), np.array(is_answer), np.array(starts, np.int64))


def mark_answers(ids: list[int], *, header: list[int], end: int) -> list[bool]:
    marks, is_inside = [], False
    for at, token in enumerate(ids):
        marks.append(is_inside)
        if token == end:
            is_inside = False
        elif ids[max(0, at + 1 - len(header)) : at + 1] == header:
            is_inside = True
    return marks


class Batches:
    """Seeded batches of at most `max_tokens` tokens, padding included."""

    def __init__(self, encoded: Encoded, *, max_tokens: int, seed: int) -> None:
        self.encoded, self.max_tokens, self.seed = encoded, max_tokens, seed
        self.lengths = np.diff(encoded.starts)

    def groups(self, epoch: int, *, num_short: int = 0) -> list[list[int]]:
        """The items of each batch of one pass: sorted by length with random ties, cut into batches, which are shuffled.

        The first `num_short` batches contain only short conversations, since longer ones build on what these teach.
        """
        rng = random.Random(f"{self.seed}/{epoch}")
        noise = np.random.default_rng(rng.getrandbits(32)).random(len(self.lengths))
        groups: list[list[int]] = []
        group: list[int] = []
        for item in np.lexsort((noise, (self.lengths + 3) // 4)):
            width = (int(self.lengths[item]) + 3) // 4 * 4
            if group and width * (len(group) + 1) > self.max_tokens:
                groups.append(group)
                group = []
            group.append(int(item))
        groups.append(group)
        rng.shuffle(groups)
        short = [group for group in groups if self.lengths[group[-1]] <= SHORT_TOKENS][:num_short]
        chosen = {group[0] for group in short}
        return short + [group for group in groups if group[0] not in chosen]

    def batch(self, items: list[int]) -> Batch:
        width = (max(int(self.lengths[item]) for item in items) + 3) // 4 * 4
        ids = np.zeros((len(items), width), np.int64)
        is_answer = np.zeros((len(items), width), bool)
        for row, item in enumerate(items):
            span = slice(self.encoded.starts[item], self.encoded.starts[item + 1])
            ids[row, : self.lengths[item]] = self.encoded.ids[span]
            is_answer[row, : self.lengths[item]] = self.encoded.is_answer[span]
        flat = is_answer.reshape(-1).nonzero()[0]
        return Batch(torch.from_numpy(ids), torch.from_numpy(flat - 1), torch.from_numpy(ids.reshape(-1)[flat]))
