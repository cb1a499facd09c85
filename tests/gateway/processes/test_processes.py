"""Several processes are one gateway: one set of metrics, one end, and no connection refused while they change."""

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path

import httpx
import pytest
from aiohttp import web

from gateway.metering.journal import Journal
from tests.support.gateway_processes import (
    DEADLINE_S,
    Processes,
    kill,
    serving,
    started,
    stream,
    until_dead,
    until_refused,
    visited,
)
from tests.support.members import serving_member
from tests.support.ports import free_port
from tests.support.valkey import ValkeyProcess

FIRST = b'data: {"id":"1","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":"Hello"}}]}'
LAST = b"data: [DONE]"
UNAUTHENTICATED = 'tiergate_requests_total{code="401",model="",pool="",tier=""}'


@asynccontextmanager
async def unhurried_member(release: asyncio.Event) -> AsyncIterator[str]:
    """Its streams end when `release` is set."""

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(FIRST + b"\n\n")
        await release.wait()
        await response.write(LAST + b"\n\n")
        return response

    async with serving_member(answer) as url:
        yield url


def num_closed(outbox: Path) -> int:
    with closing(Journal.open(outbox, must_exist=True)) as journal:
        return journal.count_closed()


@asynccontextmanager
async def serving_streams(folder: Path, valkey: ValkeyProcess, release: asyncio.Event) -> AsyncIterator[Processes]:
    """Two processes before an unhurried member."""
    async with (
        unhurried_member(release) as member_url,
        serving(folder, valkey.url, num_processes=2, member_url=member_url) as processes,
    ):
        yield processes


async def refuse(processes: Processes, *, times: int) -> None:
    """Requests without a key, each on a connection of its own."""
    for _ in range(times):
        async with httpx.AsyncClient() as client:
            reply = await client.post(f"{processes.origin}/v1/chat/completions", json={})
        assert reply.status_code == 401


async def test_whoever_is_asked_shows_the_metrics_of_all(tmp_path: Path, valkey: ValkeyProcess) -> None:
    async with serving(tmp_path, valkey.url, num_processes=2) as processes:
        await refuse(processes, times=30)
        for _ in range(12):
            shown = await processes.metrics()
            assert shown["tiergate_gateway_processes"] == 2
            assert sum(value for name, value in shown.items() if name.startswith("tiergate_requests_total")) == 30


async def test_work_under_way_is_of_all_processes(tmp_path: Path, valkey: ValkeyProcess) -> None:
    release = asyncio.Event()
    async with serving_streams(tmp_path, valkey, release) as processes:
        key = await processes.make_key()
        streams = [stream(processes, key) for _ in range(12)]
        for events in streams:
            assert await anext(events) == FIRST
        for _ in range(8):
            assert (await processes.metrics())["tiergate_requests_in_flight"] == 12
        release.set()
        for events in streams:
            assert LAST in [line async for line in events]
        async with asyncio.timeout(DEADLINE_S):
            while (await processes.metrics())["tiergate_requests_in_flight"]:
                pass


async def test_a_killed_child_comes_back_and_no_total_falls(tmp_path: Path, valkey: ValkeyProcess) -> None:
    async with serving(tmp_path, valkey.url, num_processes=2) as processes:
        await refuse(processes, times=20)
        before = await processes.metrics()
        former = processes.children()
        kill(min(former))
        # Its connections are accepted by the other until there is a successor.
        await refuse(processes, times=20)
        await processes.until_all_serve(2)
        after = await processes.metrics()
        assert min(former) not in processes.children() and max(former) in processes.children()
        totals = [name for name in before if name.startswith("tiergate_requests_total")]
        assert totals and all(after[name] == before[name] + 20 for name in totals)
        processes.parent.terminate()
        assert await processes.end() == 0, processes.log


@pytest.mark.long
async def test_a_child_that_hangs_is_replaced(tmp_path: Path, valkey: ValkeyProcess) -> None:
    async with serving(tmp_path, valkey.url, num_processes=2) as processes:
        hung = min(processes.children())
        os.kill(hung, signal.SIGSTOP)
        await until_dead({hung})
        await processes.until_all_serve(2)


async def test_others_serve_for_a_child_that_cannot_be_started(tmp_path: Path, valkey: ValkeyProcess) -> None:
    async with serving(tmp_path, valkey.url, num_processes=2) as processes:
        (tmp_path / "tiergate.toml").write_text('nonsense = "yes"\n')
        kill(min(processes.children()))
        while "did not start" not in processes.log:
            await refuse(processes, times=10)
        async with visited(processes.port) as visitors:
            await visitors.until(100)
        (tmp_path / "tiergate.toml").unlink()
        await processes.until_all_serve(2)


async def test_a_hangup_replaces_all_children_and_refuses_nobody(tmp_path: Path, valkey: ValkeyProcess) -> None:
    release = asyncio.Event()
    async with serving_streams(tmp_path, valkey, release) as processes:
        former, key = processes.children(), await processes.make_key()
        own = set(processes.outboxes)
        assert len(own) == 2
        await refuse(processes, times=10)
        events = stream(processes, key)
        assert await anext(events) == FIRST
        async with visited(processes.port) as visitors:
            await visitors.until(50)
            processes.parent.send_signal(signal.SIGHUP)
            while "all processes have been replaced" not in processes.log:
                await visitors.until(10)
            # One of the former ones still has a stream.
            assert len(processes.children() - former) == 2
            release.set()
            assert [event async for event in events] == [LAST]
            await until_dead(former)
            await visitors.until(50)
        assert len(set(processes.outboxes) - own) == 2
        shown = await processes.metrics()
        assert shown["tiergate_gateway_processes"] == 2
        assert sum(value for name, value in shown.items() if name.startswith("tiergate_requests_total")) == 11
        processes.parent.terminate()
        assert await processes.end() == 0, processes.log
        # The stream's event waits where the process that served it left it.
        assert processes.outboxes and own >= set(processes.outboxes)
        assert sum(num_closed(path) for path in processes.outboxes) == 1


async def test_sigterm_lets_streams_end(tmp_path: Path, valkey: ValkeyProcess) -> None:
    release = asyncio.Event()
    async with serving_streams(tmp_path, valkey, release) as processes:
        children, key = processes.children(), await processes.make_key()
        streams = [stream(processes, key) for _ in range(6)]
        assert [await anext(events) for events in streams] == [FIRST] * 6
        processes.parent.terminate()
        await until_refused(processes.port)
        release.set()
        assert [[event async for event in events] for events in streams] == [[LAST]] * 6
        assert await processes.end() == 0, processes.log
        await until_dead(children)


async def test_a_second_signal_ends_it_at_once(tmp_path: Path, valkey: ValkeyProcess) -> None:
    async with (
        unhurried_member(asyncio.Event()) as member_url,
        serving(tmp_path, valkey.url, num_processes=2, member_url=member_url, TIERGATE_DRAIN_S="3600") as processes,
    ):
        children, events = processes.children(), stream(processes, await processes.make_key())
        assert await anext(events) == FIRST
        processes.parent.send_signal(signal.SIGINT)
        await until_refused(processes.port)
        assert processes.parent.returncode is None
        processes.parent.send_signal(signal.SIGINT)
        assert await processes.end() == 0, processes.log
        await until_dead(children)
        # The stream says that it is broken, or is cut, and never that it is whole.
        with contextlib.suppress(httpx.RemoteProtocolError):
            assert LAST not in [event async for event in events]


async def test_children_die_with_their_parent(tmp_path: Path, valkey: ValkeyProcess) -> None:
    async with serving(tmp_path, valkey.url, num_processes=2) as processes:
        children = processes.children()
        kill(processes.parent.pid)
        await until_dead(children)


@pytest.mark.parametrize(
    ("name", "value"),
    [("TIERGATE_DATA_DIR", "/dev/null/data"), ("TIERGATE_DATABASE_URL", "sqlite:////nowhere/at/all.db")],
)
async def test_what_stops_a_child_stops_all_with_one_line(
    tmp_path: Path, valkey: ValkeyProcess, name: str, value: str
) -> None:
    async with started(tmp_path, valkey.url, "--processes=3", "--log-level=error", **{name: value}) as processes:
        assert await processes.end() == 2
        told = [line for line in processes.log.splitlines() if not line.startswith("INFO")]
        assert len(told) == 1 and name in told[0], processes.log


async def test_an_address_that_others_share_is_told(tmp_path: Path, valkey: ValkeyProcess) -> None:
    async with serving(tmp_path, valkey.url, num_processes=2) as processes:
        second = tmp_path / "second"
        second.mkdir()
        port = str(processes.port)
        async with started(second, valkey.url, "--processes=2", TIERGATE_PORT=port) as refused:
            assert await refused.end() == 2
            assert "TIERGATE_PORT" in refused.log


async def test_bad_configuration_on_a_hangup_leaves_those_that_serve(tmp_path: Path, valkey: ValkeyProcess) -> None:
    async with serving(tmp_path, valkey.url, num_processes=2) as processes:
        former = processes.children()
        (tmp_path / "tiergate.toml").write_text('nonsense = "yes"\n')
        async with visited(processes.port) as visitors:
            processes.parent.send_signal(signal.SIGHUP)
            while "did not start" not in processes.log:
                await visitors.until(10)
        assert processes.children() == former
        (tmp_path / "tiergate.toml").unlink()
        async with visited(processes.port) as visitors:
            processes.parent.send_signal(signal.SIGHUP)
            while "all processes have been replaced" not in processes.log:
                await visitors.until(10)


async def test_sigterm_while_children_are_replaced_ends_old_and_new_ones(tmp_path: Path, valkey: ValkeyProcess) -> None:
    release = asyncio.Event()
    async with serving_streams(tmp_path, valkey, release) as processes:
        former, key = processes.children(), await processes.make_key()
        events = stream(processes, key)
        assert await anext(events) == FIRST
        processes.parent.send_signal(signal.SIGHUP)
        async with asyncio.timeout(DEADLINE_S):
            while not processes.children() - former:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        everyone = processes.children() | former
        processes.parent.terminate()
        await until_refused(processes.port)
        release.set()
        assert [event async for event in events] == [LAST]
        assert await processes.end() == 0, processes.log
        await until_dead(everyone)
        assert "Traceback" not in processes.log


async def test_one_process_ignores_a_hangup(tmp_path: Path, valkey: ValkeyProcess) -> None:
    async with serving(tmp_path, valkey.url, num_processes=1) as processes:
        assert processes.children() == set()
        processes.parent.send_signal(signal.SIGHUP)
        async with visited(processes.port) as visitors:
            await visitors.until(20)
        assert "SIGHUP is ignored" in processes.log


async def test_a_port_in_use_is_told(tmp_path: Path, valkey: ValkeyProcess) -> None:
    holder = await asyncio.start_server(lambda *_: None, "127.0.0.1", free_port())
    port = str(holder.sockets[0].getsockname()[1])
    async with started(tmp_path, valkey.url, "--processes=2", TIERGATE_PORT=port) as processes:
        assert await processes.end() == 2
        assert "TIERGATE_PORT" in processes.log
    holder.close()
