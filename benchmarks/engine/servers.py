"""A server under test: either started by a command and awaited, or already running elsewhere."""

import asyncio
import contextlib
import os
import shlex
import signal
import subprocess
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from benchmarks.platform import free_port

_START_LIMIT_S = 300.0
_POLL_S = 0.02
_SILENCE_LIMIT_S = 600.0
"""A prompt of 131,072 tokens takes minutes on two cores; a server that is silent for longer hangs."""


@dataclass(frozen=True)
class Server:
    """base_url ends in /v1. start_s: seconds from the process's start to its first completion; None if it ran already.

    adapters: used by the requests in turn; empty for the base model.
    """

    name: str
    base_url: str
    model: str
    session: aiohttp.ClientSession
    start_s: float | None
    adapters: tuple[str, ...] = ()

    def model_of(self, request: int) -> str:
        return self.adapters[request % len(self.adapters)] if self.adapters else self.model


@contextlib.asynccontextmanager
async def running_server(name: str, target: str, folder: Path, *, key: str | None = None) -> AsyncIterator[Server]:
    """target: a URL with /v1, or a command with `{port}` and `{model}`; key: the API key that the server requires."""
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    timeout = aiohttp.ClientTimeout(total=None, sock_read=_SILENCE_LIMIT_S)
    # One connection per request: some servers close theirs after a stream without announcing it.
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout, headers=headers) as session:
        if target.startswith(("http://", "https://")):
            base_url = target.rstrip("/")
            yield Server(name, base_url, await _model_id(session, base_url), session, None)
            return
        port = free_port()
        command = shlex.split(target.format(port=port, model=folder))
        base_url = f"http://127.0.0.1:{port}/v1"
        started = time.perf_counter()
        with _process(command, Path(f"/tmp/benchmark-engine-{name}.log")) as process:
            model = await _until_answering(session, base_url, process)
            yield Server(name, base_url, model, session, time.perf_counter() - started)


@contextlib.contextmanager
def _process(command: list[str], log_path: Path):
    with log_path.open("wb") as log:
        # A process group of its own, since some engines start workers that outlive a signal to only their parent.
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            yield process
        finally:
            os.killpg(process.pid, signal.SIGTERM)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


async def _until_answering(session: aiohttp.ClientSession, base_url: str, process: subprocess.Popen[bytes]) -> str:
    """The model's id, once a completion of one token succeeds."""
    deadline = time.monotonic() + _START_LIMIT_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise SystemExit(f"{process.args} ended with {process.returncode}; see its log in /tmp")
        with contextlib.suppress(aiohttp.ClientError, KeyError):
            model = await _model_id(session, base_url)
            body = {"model": model, "prompt": [5, 6, 7], "max_tokens": 1}
            async with session.post(f"{base_url}/completions", json=body) as reply:
                if reply.status == 200:
                    await reply.read()
                    return model
        await asyncio.sleep(_POLL_S)
    raise SystemExit(f"{process.args} did not answer within {_START_LIMIT_S:.0f} s")


async def _model_id(session: aiohttp.ClientSession, base_url: str) -> str:
    async with session.get(f"{base_url}/models") as reply:
        return str((await reply.json())["data"][0]["id"])
