"""Graded prompts: which of the two models answered each correctly. JSON lines, gzipped if the name ends in .gz."""

import gzip
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from protocol.messages import Message, Tool, UserMessage
from router.complexity import chat_prompt
from router.features import Prompt
from tiergate.failure import Failure


class Row(msgspec.Struct, kw_only=True, frozen=True):
    """`prompt`, or `messages` and `tools` as a client sends them. `source` only decides what is held out together."""

    weak_correct: bool
    strong_correct: bool
    prompt: str | None = None
    messages: tuple[Message, ...] = ()
    tools: tuple[Tool, ...] = ()
    source: str = ""
    weight: float = 1.0

    @property
    def conversation(self) -> tuple[Message, ...]:
        return self.messages if self.prompt is None else (UserMessage(content=self.prompt),)


class Graded:
    """All rows of one or more files, as arrays."""

    def __init__(self, rows: list[Row]) -> None:
        self.rows = rows
        self.sources = np.array([row.source for row in rows])
        self.weak = np.array([row.weak_correct for row in rows], dtype=np.float64)
        self.strong = np.array([row.strong_correct for row in rows], dtype=np.float64)
        self.weights = np.array([row.weight for row in rows], dtype=np.float64)

    @property
    def gains(self) -> NDArray[np.float64]:
        """1 where only the large model is right, -1 where only the small one is."""
        return self.strong - self.weak

    @property
    def labels(self) -> NDArray[np.float64]:
        """1 where the large model is right and the small one is wrong, otherwise 0. A score is the probability of 1."""
        return (self.gains > 0).astype(np.float64)

    def where(self, mask: NDArray[np.bool_]) -> "Graded":
        return Graded([row for row, is_in in zip(self.rows, mask.tolist(), strict=True) if is_in])

    def prompts(self) -> list[Prompt]:
        return [
            chat_prompt((UserMessage(content=row.prompt),) if row.prompt is not None else row.messages, row.tools)
            for row in self.rows
        ]


def read_graded(files: list[Path]) -> Graded:
    """Raises Failure, naming the file and the line, if a file cannot be read, a row is invalid, or there are no
    rows."""
    graded = Graded([row for file in files for row in _read_rows(file)])
    if not graded.rows:
        raise Failure(f"{', '.join(map(str, files))}: no rows")
    return graded


def check_both_classes(graded: Graded) -> None:
    """Raises Failure if the large model alone is right on no row or on all rows, or if it does not gain in total."""
    num_gained = int(graded.labels.sum())
    if num_gained in (0, len(graded.rows)) or graded.gains.sum() <= 0:
        raise Failure(
            f"of {len(graded.rows)} rows, {num_gained} are ones where only the strong model is right, and it gains "
            f"{int(graded.gains.sum())} in all: there is nothing to learn; grade prompts on which the models differ"
        )


def _read_rows(file: Path) -> list[Row]:
    decoder = msgspec.json.Decoder(Row)
    rows = []
    try:
        with gzip.open(file, "rb") if file.suffix == ".gz" else file.open("rb") as lines:
            for number, line in enumerate(lines, start=1):
                try:
                    row = decoder.decode(line)
                except msgspec.MsgspecError as error:
                    raise Failure(f"{file}:{number}: {error}") from None
                if (row.prompt is None) == (not row.messages) or not 0 < row.weight < 1e6:
                    raise Failure(f"{file}:{number}: give either a prompt or messages, and a weight above 0")
                rows.append(row)
    except (OSError, EOFError) as error:
        raise Failure(f"{file}: {error}") from None
    return rows
