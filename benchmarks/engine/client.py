"""Times one streamed completion. The client does little, since on a small machine it shares the engine's cores."""

import json
import time
from dataclasses import dataclass

from benchmarks.engine.servers import Server


@dataclass(frozen=True)
class Stream:
    """Times are `time.perf_counter()`."""

    started_at: float
    first_at: float
    ended_at: float
    num_prompt: int
    num_output: int

    @property
    def ttft_ms(self) -> float:
        return (self.first_at - self.started_at) * 1e3

    @property
    def tpot_ms(self) -> float | None:
        """Time per output token after the first; None if there is only one."""
        if self.num_output < 2:
            return None
        return (self.ended_at - self.first_at) * 1e3 / (self.num_output - 1)


async def complete(
    server: Server, prompt: list[int], num_output: int, *, place: int = 0, headers: dict[str, str] | None = None
) -> Stream:
    """Request exactly `num_output` greedy tokens after the prompt's ids; anything else ends the benchmark.

    place: the request's index within its workload.
    """
    body = {
        "model": server.model_of(place),
        "prompt": prompt,
        "max_tokens": num_output,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    received = bytearray()
    first_at = None
    started_at = time.perf_counter()
    async with server.session.post(f"{server.base_url}/completions", json=body, headers=headers) as reply:
        async for piece in reply.content.iter_any():
            received += piece
            if first_at is None and b"data: {" in received:
                first_at = time.perf_counter()
    ended_at = time.perf_counter()
    counted = _counted(bytes(received))
    if reply.status != 200 or first_at is None or counted != num_output:
        raise SystemExit(f"{server.name}: {reply.status}, {counted} of {num_output} tokens: {received[-500:]!r}")
    return Stream(started_at, first_at, ended_at, len(prompt), num_output)


def _counted(content: bytes) -> int:
    """completion_tokens of the last event with usage; 0 if there is none."""
    for line in reversed(content.splitlines()):
        if line.startswith(b"data: {") and (usage := json.loads(line[6:]).get("usage")):
            return int(usage["completion_tokens"])
    return 0
