"""Drives the load generator: the request, the schedule, and the results."""

import json
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec

from benchmarks.gateway.compiled import compiled
from benchmarks.gateway.machine import Cores, pinned

_WHOLE_TOKENS = 16
_POLL_S = 0.1


class Times(msgspec.Struct, frozen=True):
    count: int
    p50_ms: float | None
    p99_ms: float | None
    max_ms: float | None


class Transit(msgspec.Struct, frozen=True):
    """The time from the upstream's write of a chunk to its arrival at the client."""

    ramp: Times
    """Chunks until the last stream was open."""
    after: Times
    steady: Times
    """The part of `after` until the first stream ended."""


class Failed(msgspec.Struct, frozen=True):
    """Requests without an answer, or with an answer other than the requested one."""

    connect: int
    closed: int
    broken: int
    unanswered: int

    @property
    def total(self) -> int:
        return self.connect + self.closed + self.broken + self.unanswered


class Seen(msgspec.Struct, frozen=True):
    """The results that native/load.c prints."""

    seconds: float
    requests: int
    requests_per_s: float
    status: dict[str, Times]
    local: int
    no_retry_after: int
    no_connection: int
    failed: Failed
    opened_s: float
    chunks: int
    chunks_per_s: float
    bytes: int
    ttft: Times
    transit: Transit

    @property
    def num_answers(self) -> int:
        return sum(times.count for times in self.status.values())

    @property
    def num_wrong(self) -> int:
        """Everything except correct answers with status 200."""
        return self.failed.total + self.num_answers - self.num_ok

    @property
    def num_ok(self) -> int:
        return self.status["200"].count if "200" in self.status else 0

    @property
    def p50_ms(self) -> float:
        """The median latency of correct answers. Raises WrongAnswers if there are none."""
        times = self.status.get("200")
        if times is None or times.p50_ms is None:
            raise WrongAnswers(f"not one answer with status 200: {self}")
        return times.p50_ms


class WrongAnswers(Exception):
    """A target gave wrong answers, so its figures are meaningless."""


def check_right(target: "Target", seen: Seen) -> None:
    """Raises WrongAnswers."""
    if seen.num_wrong or not seen.num_ok:
        counts = {status: times.count for status, times in seen.status.items()}
        raise WrongAnswers(f"{target.name} gave wrong answers: {counts}, {seen.failed}")


@dataclass(frozen=True)
class Target:
    """A server that answers `POST /v1/chat/completions`."""

    name: str
    ports: tuple[int, ...]
    model: str = "bench"
    key: str | None = None
    max_tokens: int = _WHOLE_TOKENS
    extra: dict[str, object] = field(default_factory=dict)

    def request(self, *, num_chunks: int | None = None, pause_ms: int = 0) -> bytes:
        """The request's bytes, for a stream of `num_chunks` chunks or, if None, for a whole answer. native/upstream.c
        reads the text in brackets."""
        text = f"Tell me about the sea. [{num_chunks or 1} chunks, {pause_ms} ms]"
        fields: dict[str, object] = {"model": self.model, "messages": [{"role": "user", "content": text}]}
        fields["max_tokens"] = max(self.max_tokens, num_chunks or 0)
        if num_chunks is not None:
            fields["stream"] = True
        body = json.dumps(fields | self.extra, separators=(",", ":")).encode()
        lines = ["POST /v1/chat/completions HTTP/1.1", "Host: 127.0.0.1", "Content-Type: application/json"]
        lines += [f"Content-Length: {len(body)}"] + ([f"Authorization: Bearer {self.key}"] if self.key else [])
        return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


@dataclass(frozen=True)
class Load:
    """Runs the load generator on the clients' core."""

    cores: Cores

    def closed(self, target: Target, *, connections: int, seconds: float) -> Seen:
        """Closed loop with whole answers: each connection sends its next request when it has the last answer."""
        return self._run(target, target.request(), connections=connections, seconds=seconds)

    def flood(self, target: Target, *, connections: int, seconds: float, chunks_each: int) -> Seen:
        """Streams without pauses between chunks, one after the other on each connection."""
        request = target.request(num_chunks=chunks_each)
        return self._run(target, request, connections=connections, seconds=seconds, chunks=chunks_each)

    def streams(
        self,
        target: Target,
        *,
        count: int,
        ramp_s: float,
        pause_ms: int,
        hold_s: float,
        watch: Callable[[], None] | None = None,
    ) -> Seen:
        """`count` streams, started evenly over `ramp_s`, each lasting for ramp plus hold. watch: called meanwhile."""
        num_chunks = max(2, int((ramp_s + hold_s) * 1000 / pause_ms))
        return self._run(
            target,
            target.request(num_chunks=num_chunks, pause_ms=pause_ms),
            watch=watch,
            connections=count,
            each=1,
            ramp=ramp_s,
            chunks=num_chunks,
            seconds=2 * (ramp_s + hold_s),
            patience=60,
        )

    def open_loop(
        self,
        target: Target,
        *,
        rate: float,
        connections: int,
        seconds: float,
        watch: Callable[[], None] | None = None,
    ) -> Seen:
        """Open loop with whole answers: requests at a rate that does not depend on the answers."""
        return self._run(
            target, target.request(), watch=watch, connections=connections, rate=rate, seconds=seconds, patience=20
        )

    def burst(self, target: Target, *, connections: int, chunks_each: int) -> Seen:
        """One stream on each connection, all at once, without pauses between chunks."""
        request = target.request(num_chunks=chunks_each)
        return self._run(target, request, connections=connections, each=1, chunks=chunks_each, seconds=60)

    def _run(
        self, target: Target, request: bytes, *, watch: Callable[[], None] | None = None, **options: float
    ) -> Seen:
        with tempfile.NamedTemporaryFile(prefix="tiergate-request-") as file:
            file.write(request)
            file.flush()
            command = [str(compiled("load")), "--ports", ",".join(map(str, target.ports)), "--request", file.name]
            command += [f"--{name}={value}" for name, value in options.items()]
            with pinned(self.cores.clients):
                output = _output_of(command, watch)
        return msgspec.json.decode(output, type=Seen)


def _output_of(command: Sequence[str], watch: Callable[[], None] | None) -> bytes:
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            while True:
                try:
                    output, _ = process.communicate(timeout=_POLL_S)
                    break
                except subprocess.TimeoutExpired:
                    if watch is not None:
                        watch()
        except BaseException:
            process.kill()
            raise
    if process.returncode != 0:
        raise SystemExit(f"{command[0]} ended with {process.returncode}")
    return output
