"""Checks a batch's input line by line. A bad line is reported by its number; some errors fail the whole batch."""

from collections.abc import AsyncIterable, AsyncIterator
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import msgspec

MAX_LINES = 50_000
MAX_PROBLEMS = 100
"""Problems that the batch object lists; the error file has them all."""
Json = dict[str, Any]
Lines = list[tuple[int, bytes | None]]
"""Line numbers, from 1, with the lines; None stands for a line that is too long."""


class BatchLine(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    custom_id: Annotated[str, msgspec.Meta(min_length=1, max_length=512)]
    method: Literal["POST"]
    url: str
    body: msgspec.Raw


class _Body(msgspec.Struct):
    model: Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
    stream: bool | None = None
    server_tools: list[Any] | None = None


_decode_line = msgspec.json.Decoder(BatchLine).decode
_decode_body = msgspec.json.Decoder(_Body).decode


@dataclass(frozen=True, slots=True)
class Problem:
    line: int | None
    code: str
    message: str
    param: str | None = None
    custom_id: str | None = None

    def as_json(self) -> Json:
        return {"code": self.code, "message": self.message, "param": self.param, "line": self.line}


@dataclass
class InputCheck:
    """Checks the lines it is fed. `problems`: of single lines; `fatal`: why the batch cannot run."""

    endpoint: str
    num_lines: int = 0
    model: str | None = None
    problems: list[Problem] = field(default_factory=list)
    fatal: Problem | None = None
    _first_seen: dict[str, int] = field(default_factory=dict)

    def feed(self, lines: Lines) -> None:
        for number, line in lines:
            if self.fatal is None:
                self._check(number, line)

    def finish(self) -> None:
        if self.fatal is not None:
            return
        if not self.num_lines:
            self.fatal = Problem(None, "empty_file", "the input file has no lines; put one request on each")
        elif len(self.problems) == self.num_lines:
            first = self.problems[0].message
            self.fatal = Problem(None, "invalid_jsonl", f"no line of the input file can be run; {first}")

    def _check(self, number: int, line: bytes | None) -> None:
        self.num_lines += 1
        if self.num_lines > MAX_LINES:
            message = f"the input file has more than {MAX_LINES} lines; split it"
            self.fatal = Problem(number, "too_many_lines", message)
            return
        try:
            request, model = parse_line(line, self.endpoint)
        except BadLine as error:
            message = f"line {number}: {error}"
            self.problems.append(Problem(number, "invalid_line", message, error.param, error.custom_id))
            return
        first = self._first_seen.setdefault(request.custom_id, number)
        if first != number:
            self.fatal = Problem(
                number,
                "duplicate_custom_id",
                f"line {number}: custom_id {request.custom_id[:100]!r} is also that of line {first}",
                "custom_id",
            )
        self.model = self.model or model
        if model != self.model:
            self.fatal = Problem(
                number,
                "mismatched_model",
                f"line {number}: model {model!r}, where lines before have {self.model!r}; make a batch for each model",
                "body.model",
            )


class BadLine(ValueError):
    def __init__(self, message: str, *, param: str | None = None, custom_id: str | None = None) -> None:
        super().__init__(message)
        self.param = param
        self.custom_id = custom_id


def parse_line(line: bytes | None, endpoint: str) -> tuple[BatchLine, str]:
    """The request and its model; None stands for a line that is too long. Raises BadLine."""
    if line is None:
        raise BadLine("it is longer than a request may be")
    try:
        request = _decode_line(line)
    except msgspec.ValidationError as error:
        raise BadLine(str(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadLine(f"this is no JSON: {error}") from None
    if request.url != endpoint:
        message = f"url is {request.url[:100]!r}, but the batch is for {endpoint}"
        raise BadLine(message, param="url", custom_id=request.custom_id)
    try:
        body = _decode_body(request.body)
    except msgspec.DecodeError as error:
        raise BadLine(f"body: {error}", param="body", custom_id=request.custom_id) from None
    if body.stream:
        message = "body.stream: a batch has nobody to stream to; leave it out"
        raise BadLine(message, param="body.stream", custom_id=request.custom_id)
    if body.server_tools:
        message = "body.server_tools: server tools are not called in batches; leave them out"
        raise BadLine(message, param="body.server_tools", custom_id=request.custom_id)
    return request, body.model


async def numbered_lines(blocks: AsyncIterable[bytes], *, max_line_bytes: int) -> AsyncIterator[Lines]:
    """The non-blank lines with their numbers from 1, one list per block.

    A line that is too long is yielded as None and never held in memory as a whole."""
    number, rest, is_long = 0, b"", False
    async for block in blocks:
        *whole, rest = (rest + block).split(b"\n")
        found: Lines = []
        for line in whole:
            number += 1
            if is_long or len(line) > max_line_bytes:
                found.append((number, None))
            elif line.strip():
                found.append((number, line))
            is_long = False
        if is_long or len(rest) > max_line_bytes:
            rest, is_long = b"", True
        if found:
            yield found
    if is_long:
        yield [(number + 1, None)]
    elif rest.strip():
        yield [(number + 1, rest)]
