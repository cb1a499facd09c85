"""The pipeline against a real Valkey, and against servers that misbehave."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from redis.exceptions import ResponseError

from gateway.main import end_tasks
from gateway.redis_client import connect_redis
from gateway.redis_client.connection import LEAST_IN_FLIGHT, LONG_TICKS, MAX_IN_FLIGHT, MIN_IN_FLIGHT, Late, Lost
from gateway.redis_client.grouping import Group
from gateway.redis_client.pipeline import NUM_CONNECTIONS, SILENT_CALLS, Pipeline
from gateway.redis_client.resp import encode, encode_parts
from tests.support.valkey import ValkeyProcess

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Seen:
    """What a pipeline told of."""

    def __init__(self) -> None:
        self.num_answers = self.num_late = self.num_silences = self.num_connections = 0
        self.changed = asyncio.Event()

    def note_answer(self) -> None:
        self.num_answers += 1

    def note_late(self) -> None:
        self.num_late += 1

    def note_silence(self) -> None:
        self.num_silences += 1
        self.changed.set()

    def note_connections(self, num_connections: int) -> None:
        self.num_connections = num_connections
        self.changed.set()

    async def until_connections(self, num_connections: int) -> None:
        await self.until(lambda: self.num_connections == num_connections)

    async def until(self, is_true: Callable[[], bool]) -> None:
        async with asyncio.timeout(20):
            while not is_true():
                self.changed.clear()
                await self.changed.wait()


@asynccontextmanager
async def open_pipeline(
    url: str, *, deadline_s: float = 5.0, scripts: tuple[str, ...] = ()
) -> AsyncIterator[tuple[Pipeline, Seen]]:
    seen = Seen()
    pipeline = Pipeline(url, deadline_s=deadline_s, scripts=scripts, watch=seen)
    await pipeline.connect()
    async with asyncio.TaskGroup() as group:
        loop = group.create_task(pipeline.keep_forever())
        try:
            yield pipeline, seen
        finally:
            await end_tasks([loop])
            pipeline.close()


@asynccontextmanager
async def server(handler: Handler, path: Path | None = None) -> AsyncIterator[str]:
    """Its URL. At the end all its connections have ended."""
    tasks: set[asyncio.Task[Any] | None] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.add(asyncio.current_task())
        with contextlib.suppress(ConnectionError):
            await handler(reader, writer)
        writer.close()

    if path is None:
        running = await asyncio.start_server(serve, "127.0.0.1", 0)
        url = f"redis://127.0.0.1:{running.sockets[0].getsockname()[1]}/0"
    else:
        running, url = await asyncio.start_unix_server(serve, path), f"unix://{path}"
    try:
        yield url
    finally:
        running.close()
        await asyncio.wait([task for task in tasks if task is not None], timeout=20)


async def test_many_calls_at_once_each_get_their_own_answer(valkey: ValkeyProcess) -> None:
    async with open_pipeline(valkey.url) as (pipeline, _):
        texts = [f"{number}-{'x' * (number % 50)}" for number in range(2000)]
        calls = [pipeline.send(encode("ECHO", text), order=number) for number, text in enumerate(texts)]
        assert [await call.future for call in calls] == [text.encode() for text in texts]


@asynccontextmanager
async def recording_pipeline() -> AsyncIterator[tuple[Pipeline, list[bytes]]]:
    """A pipeline to a server that says OK to everything, and the chunks that it receives after the handshake."""
    chunks: list[bytes] = []

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(2**20):
            chunks.append(data)
            writer.write(b"+OK\r\n" * data.count(b"*"))

    async with server(handler) as url, open_pipeline(url) as (pipeline, _):
        chunks.clear()
        yield pipeline, chunks


async def test_calls_of_one_turn_leave_in_one_write() -> None:
    async with recording_pipeline() as (pipeline, chunks):
        await asyncio.gather(*(pipeline.execute("PING") for _ in range(MAX_IN_FLIGHT)))
        assert len(chunks) == 1
        chunks.clear()
        # More wait here rather than in a server that answers all that it has read at once.
        await asyncio.gather(*(pipeline.execute("PING") for _ in range(2 * MAX_IN_FLIGHT)))
        assert max(chunk.count(b"PING") for chunk in chunks) <= MAX_IN_FLIGHT


async def test_calls_of_consecutive_turns_leave_in_one_write(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.gathering.MAX_S", 20.0)
    async with recording_pipeline() as (pipeline, chunks):
        calls = []
        for _ in range(4):
            calls.append(pipeline.send(encode("PING")))
            await asyncio.sleep(0)
        for call in calls:
            assert await call.future == b"OK"
        assert len(chunks) == 1


@pytest.mark.parametrize(("num_gateways", "most"), [(8, MAX_IN_FLIGHT // 8), (1000, MIN_IN_FLIGHT), (0, MAX_IN_FLIGHT)])
async def test_gateways_share_what_is_under_way(num_gateways: int, most: int) -> None:
    at_once: list[int] = []

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(2**20):
            at_once.append(data.count(b"PING"))
            writer.write(b"+OK\r\n" * data.count(b"*"))

    async with server(handler) as url, open_pipeline(url) as (pipeline, _):
        pipeline.share_with(num_gateways)
        await asyncio.gather(*(pipeline.execute("PING") for _ in range(2 * MAX_IN_FLIGHT)))
        assert max(at_once) == most


async def test_a_slow_server_is_asked_less_at_a_time_until_it_is_quick_again() -> None:
    at_once: list[int] = []
    is_slow = True

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(2**20):
            if b"TIME" in data:
                at_once.append(data.count(b"TIME"))
            since = pipeline._connections[0]._ticks if is_slow else 0  # type: ignore[union-attr]
            while is_slow and pipeline._connections[0]._ticks < since + LONG_TICKS:  # type: ignore[union-attr]  # noqa: ASYNC110
                await asyncio.sleep(0.001)
            writer.write(b"+OK\r\n" * data.count(b"*"))

    async with server(handler) as url:
        is_slow = False
        async with open_pipeline(url, deadline_s=0.5) as (pipeline, seen):
            is_slow = True
            at_once.clear()
            await asyncio.gather(*(pipeline.execute("TIME") for _ in range(3 * MAX_IN_FLIGHT // 2)))
            assert at_once == [MAX_IN_FLIGHT, MAX_IN_FLIGHT // 2]
            for _ in range(10):
                await pipeline.execute("TIME")
            at_once.clear()
            await asyncio.gather(*(pipeline.execute("TIME") for _ in range(3 * LEAST_IN_FLIGHT)))
            assert max(at_once) == LEAST_IN_FLIGHT
            is_slow = False
            await asyncio.gather(*(pipeline.execute("TIME") for _ in range(4 * MAX_IN_FLIGHT)))
            assert max(at_once) == MAX_IN_FLIGHT
            assert seen.num_late == 0


async def test_calls_of_the_same_order_keep_it(valkey: ValkeyProcess) -> None:
    key = str(uuid4())
    async with open_pipeline(valkey.url) as (pipeline, _):
        calls = [pipeline.send(encode("RPUSH", key, number), order=3) for number in range(300)]
        assert [await call.future for call in calls] == list(range(1, 301))


async def test_an_error_is_its_own_calls_only(valkey: ValkeyProcess) -> None:
    async with open_pipeline(valkey.url) as (pipeline, seen):
        bad, good = pipeline.send(encode("NONSENSE")), pipeline.send(encode("PING"))
        with pytest.raises(ResponseError):
            await bad.future
        assert await good.future == b"PONG"
        assert seen.num_late == 0


async def test_steps_of_a_group_are_one_command_in_their_order(valkey: ValkeyProcess) -> None:
    key = str(uuid4())
    script = "redis.call('RPUSH', KEYS[1], unpack(ARGV)) return table.concat(ARGV, ';')"
    one, other, apart = (
        Group(encode_parts("EVAL", f"{script} --{name}", 1, key), 4, is_apart=name == "c") for name in "abc"
    )
    async with open_pipeline(valkey.url) as (pipeline, _):
        steps = [
            pipeline.send_step(one, encode_parts("1"), 1),
            pipeline.send_step(other, encode_parts("2"), 1),
            pipeline.send_step(one, encode_parts("3"), 1),
            pipeline.send(encode("RPUSH", key, "alone")),
            pipeline.send_step(one, encode_parts("4"), 1),
            pipeline.send_step(apart, encode_parts("5"), 1),
            pipeline.send_step(apart, encode_parts("6"), 1),
            pipeline.send_step(one, encode_parts("7"), 1),
        ]
        assert [await step.future for step in steps] == [b"1", b"2", b"3", 4, b"4", b"5", b"6", b"7"]
        # None passed the one that is in no group or those that are apart, and the third joined the first.
        assert await pipeline.execute("LRANGE", key, 0, -1) == b"1 3 2 alone 4 5 6 7".split()


async def test_only_what_is_sent_at_once_does_not_wait_for_others(valkey: ValkeyProcess) -> None:
    script = "local sizes = {} for i = 1, #ARGV do sizes[i] = #ARGV end return table.concat(sizes, ';')"
    group = Group(encode_parts("EVAL", script, 0), 3)
    async with open_pipeline(valkey.url) as (pipeline, _):

        async def sizes(*at_once: bool) -> list[int]:
            """For each step, how many left in its command."""
            steps = [pipeline.send_step(group, encode_parts("x"), 1, at_once=each) for each in at_once]
            return [int(await step.future) for step in steps]  # type: ignore[arg-type]

        assert await sizes(False, False, False) == [3, 3, 3]
        assert await sizes(True, False, False) == [1, 2, 2]
        # Something is about to leave already.
        assert await sizes(False, True) == [2, 2]


async def test_a_groups_error_is_told_to_all_its_steps_and_to_no_other(valkey: ValkeyProcess) -> None:
    bad = Group(encode_parts("EVAL", "return redis.error_reply('ERR no')", 0), 3)
    async with open_pipeline(valkey.url) as (pipeline, _):
        steps = [pipeline.send_step(bad, encode_parts(number), 1) for number in range(3)]
        good = pipeline.send(encode("PING"))
        for step in steps:
            with pytest.raises(ResponseError):
                await step.future
        assert await good.future == b"PONG"


async def test_too_few_answers_to_a_group_end_the_line(valkey: ValkeyProcess) -> None:
    wrong = Group(encode_parts("EVAL", "return 'a;b'", 0), 3)
    async with open_pipeline(valkey.url) as (pipeline, seen):
        for step in [pipeline.send_step(wrong, encode_parts(number), 1) for number in range(3)]:
            with pytest.raises(Lost):
                await step.future
        await seen.until_connections(NUM_CONNECTIONS)


async def test_connections_that_were_cut_come_back(valkey: ValkeyProcess) -> None:
    redis: Any = connect_redis(valkey.url, deadline_s=5)
    async with open_pipeline(valkey.url) as (pipeline, seen):
        ids = [await pipeline.send(encode("CLIENT", "ID"), order=order).future for order in range(NUM_CONNECTIONS)]
        waiting = pipeline.send(encode("BLPOP", str(uuid4()), 0))
        await redis.client_kill_filter(_id=ids[0])
        with pytest.raises(Lost):
            await waiting.future
        # The other connection serves meanwhile.
        assert await pipeline.execute("PING") == b"PONG"
        await seen.until_connections(NUM_CONNECTIONS)
        await redis.client_kill_filter(_id=ids[1])
        await seen.until_connections(NUM_CONNECTIONS - 1)
        await seen.until_connections(NUM_CONNECTIONS)
    await redis.aclose()


async def test_without_a_server_a_call_fails_at_once(tmp_path: Path) -> None:
    async with open_pipeline("redis://127.0.0.1:1/0") as (pipeline, seen):
        assert seen.num_connections == 0
        with pytest.raises(Lost):
            pipeline.send(encode("PING"))


async def test_a_late_answer_is_late_and_then_still_told(tmp_path: Path) -> None:
    valkey = ValkeyProcess(tmp_path)
    valkey.start()
    told: asyncio.Future[object] = asyncio.get_running_loop().create_future()
    async with open_pipeline(valkey.url, deadline_s=0.1) as (pipeline, seen):
        valkey.pause()
        with pytest.raises(Late) as late:
            await pipeline.execute("ECHO", "hello")
        late.value.call.then = told.set_result
        valkey.resume()
        async with asyncio.timeout(20):
            assert await told == b"hello"
        assert seen.num_late >= 1
    valkey.stop()


async def test_silence_is_told_long_before_the_deadline(tmp_path: Path) -> None:
    """The calls are on one connection, so the other one is probed."""
    valkey = ValkeyProcess(tmp_path)
    valkey.start()
    async with open_pipeline(valkey.url, deadline_s=5.0) as (pipeline, seen):
        await asyncio.gather(*(pipeline.execute("PING") for _ in range(4)))
        valkey.pause()
        calls = [pipeline.send(encode("TIME")).future for _ in range(SILENT_CALLS)]
        await seen.until(lambda: seen.num_silences > 0)
        assert seen.num_late == 0
        valkey.resume()
        await asyncio.gather(*calls)
    valkey.stop()


@pytest.mark.parametrize(
    ("num_calls", "num_that_answer"),
    [(SILENT_CALLS - NUM_CONNECTIONS, 0), (4 * SILENT_CALLS, 1)],
    ids=["few", "one"],
)
async def test_few_silent_calls_or_one_silent_connection_wait_for_their_deadline(
    num_calls: int, num_that_answer: int
) -> None:
    num_answering = NUM_CONNECTIONS

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal num_open
        number, num_open = num_open, num_open + 1
        while data := await reader.read(2**20):
            if number < num_answering:
                writer.write(b"+OK\r\n" * data.count(b"*"))

    num_open = 0
    async with server(handler) as url, open_pipeline(url, deadline_s=0.5) as (pipeline, seen):
        num_answering = num_that_answer
        calls = [pipeline.send(encode("TIME"), order=order).future for order in range(num_calls)]
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        assert (
            sum(isinstance(each, Late) for each in outcomes)
            == num_calls * (NUM_CONNECTIONS - num_answering) // NUM_CONNECTIONS
        )
        assert (seen.num_silences, seen.num_connections) == (0, NUM_CONNECTIONS)


async def test_a_distant_redis_and_one_that_answers_in_part_are_not_silent() -> None:
    """The first answers after seven tenths of the deadline, always. The second answers one call every three tenths."""
    is_distant = True

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(2**20):
            if is_distant:
                asyncio.get_running_loop().call_later(0.7, writer.write, b"+OK\r\n" * data.count(b"*"))
            else:
                for _ in range(data.count(b"*")):
                    writer.write(b"+OK\r\n")
                    await asyncio.sleep(0.3)

    for is_distant in (True, False):
        async with server(handler) as url, open_pipeline(url, deadline_s=1.0) as (pipeline, seen):
            calls = [pipeline.send(encode("TIME"), order=order).future for order in range(4 * SILENT_CALLS)]
            outcomes = await asyncio.gather(*calls, return_exceptions=True)
            num_late = sum(isinstance(each, Late) for each in outcomes)
            assert num_late == 0 if is_distant else 0 < num_late < len(calls)
            assert seen.num_silences == 0


async def test_nobody_waits_for_long_behind_others_calls(valkey: ValkeyProcess) -> None:
    """A Redis that answers in time, but not as many as are asked: the rest is given up instead of waiting for ever."""

    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        behind_reader, behind_writer = await asyncio.open_connection("127.0.0.1", valkey.port)
        while data := await reader.read(2**16):
            behind_writer.write(data)
            answer = await behind_reader.read(2**16)
            # Two thirds of the deadline.
            await asyncio.sleep(0.2)
            writer.write(answer)
        behind_writer.close()

    async with server(slow) as url, open_pipeline(url, deadline_s=0.3) as (pipeline, seen):
        calls = [pipeline.send(encode("ECHO", str(i))).future for i in range(2_000)]
        async with asyncio.timeout(20):
            outcomes = await asyncio.gather(*calls, return_exceptions=True)
        lost = [each for each in outcomes if isinstance(each, Lost)]
        assert lost and len(lost) + sum(isinstance(each, bytes) for each in outcomes) == len(outcomes)
        assert (seen.num_late, seen.num_connections) == (0, NUM_CONNECTIONS)


async def test_a_distant_redis_is_not_taken_for_a_busy_one(valkey: ValkeyProcess) -> None:
    async def distant(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        behind_reader, behind_writer = await asyncio.open_connection("127.0.0.1", valkey.port)

        async def back() -> None:
            while data := await behind_reader.read(2**16):
                asyncio.get_running_loop().call_later(0.2, writer.write, data)

        returning = asyncio.create_task(back())
        while data := await reader.read(2**16):
            behind_writer.write(data)
        behind_writer.close()
        await returning

    async with server(distant) as url, open_pipeline(url, deadline_s=0.5) as (pipeline, seen):
        for _ in range(8):
            await asyncio.gather(*(pipeline.execute("ECHO", str(i)) for i in range(40)))
        assert max(connection.window for connection in pipeline._connections if connection is not None) == MAX_IN_FLIGHT
        assert seen.num_late == 0


async def test_a_server_that_is_not_redis_is_left_alone() -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(100)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    async with server(handler) as url, open_pipeline(url, scripts=("return 1",)) as (pipeline, seen):
        assert seen.num_connections == 0
        with pytest.raises(Lost):
            pipeline.send(encode("PING"))


async def test_password_database_and_unix_socket_of_the_url_are_honoured(valkey: ValkeyProcess, tmp_path: Path) -> None:
    user = f"u{uuid4().hex}"
    redis: Any = connect_redis(valkey.url, deadline_s=5)
    await redis.execute_command("ACL", "SETUSER", user, "on", ">p@ss", "~*", "+@all")
    url = f"redis://{user}:p%40ss@127.0.0.1:{valkey.port}/7"
    async with open_pipeline(url) as (pipeline, _):
        info = await pipeline.execute("CLIENT", "INFO")
        assert isinstance(info, bytes)
        assert f"user={user}".encode() in info
        assert b"db=7" in info
    async with open_pipeline(url.replace("p%40ss", "wrong")) as (_, seen):
        assert seen.num_connections == 0
    await redis.aclose()

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(2**20):
            writer.write(b"+unix\r\n" * data.count(b"*"))

    path = tmp_path / "redis.sock"
    async with server(handler, path) as unix_url, open_pipeline(unix_url) as (pipeline, _):
        assert await pipeline.execute("PING") == b"unix"
