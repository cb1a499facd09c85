"""Clients that send requests until enough are finished, and record the usage reported for each."""

import asyncio
import json
import random
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

import aiohttp

from benchmarks.exactly_once.site import Site

REQUEST_TIMEOUT_S = 20.0
_PAUSE_S = 0.05


@dataclass(frozen=True)
class Told:
    tenant_id: str
    prompt_tokens: int
    completion_tokens: int


class Clients:
    def __init__(self, site: Site, *, num_requests: int, rng: random.Random) -> None:
        self._site = site
        self._num_requests = num_requests
        self._rng = rng
        self._is_more = asyncio.Event()
        self.finished: dict[str, Told] = {}
        """Request id -> the usage reported to the client, recorded after the last byte."""
        self.num_cut = 0

    async def ask_until(self, are_upsets_over: Callable[[], bool]) -> None:
        """Send requests until the upsets are over, since an upset without load shows nothing, and enough are
        finished."""
        timeout = aiohttp.ClientTimeout(total=REQUEST_TIMEOUT_S)
        async with aiohttp.ClientSession(timeout=timeout) as session:
            while len(self.finished) < self._num_requests or not are_upsets_over():
                try:
                    await self._ask(session)
                except (aiohttp.ClientError, TimeoutError, OSError, ValueError):
                    self.num_cut += 1
                    await asyncio.sleep(_PAUSE_S)

    async def each_share(self, num_shares: int) -> AsyncIterator[int]:
        """Yields at even distances of the finished requests, except at the end."""
        for share in range(num_shares):
            goal = self._num_requests * (share + 1) // (num_shares + 1)
            while len(self.finished) < goal:
                self._is_more.clear()
                await self._is_more.wait()
            yield share

    async def _ask(self, session: aiohttp.ClientSession) -> None:
        tenant_id, key = self._rng.choice(list(self._site.keys.items()))
        num_prompt, num_completion = self._rng.randint(1, 30), self._rng.randint(1, 12)
        is_stream = self._rng.random() < 0.5
        body = {
            "model": "m",
            "messages": [{"role": "user", "content": "word " * num_prompt}],
            "max_tokens": num_completion,
            "stream": is_stream,
        } | ({"stream_options": {"include_usage": True}} if is_stream else {})
        url = f"{self._rng.choice(self._site.origins)}/v1/chat/completions"
        async with session.post(url, json=body, headers={"Authorization": f"Bearer {key}"}) as reply:
            if reply.status != 200:
                raise aiohttp.ClientError(await reply.text())
            request_id = reply.headers["x-request-id"]
            usage = _usage(await reply.read(), is_stream=is_stream)
        self.finished[request_id] = Told(tenant_id, usage["prompt_tokens"], usage["completion_tokens"])
        self._is_more.set()


def _usage(answer: bytes, *, is_stream: bool) -> dict[str, int]:
    """Raises ValueError for a stream without its end, or an answer without usage."""
    if not is_stream:
        usage = json.loads(answer)["usage"]
    else:
        events = [line[6:] for line in answer.splitlines() if line.startswith(b"data: ")]
        if not events or events[-1] != b"[DONE]":
            raise ValueError("a stream without its end")
        usage = next((chunk["usage"] for event in events[:-1] if (chunk := json.loads(event)).get("usage")), None)
    if usage is None:
        raise ValueError("an answer without usage")
    return dict(usage)
