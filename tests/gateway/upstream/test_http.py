"""The data plane's HTTP client against servers that behave as they like, down to single bytes."""

import asyncio
import errno
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from gateway.upstream.client import Answer, MemberFailed
from gateway.upstream.http.connection import HIGH_WATER_BYTES, Connection
from gateway.upstream.http.errors import OutOfResources, TransportFailed, as_transport_failure
from gateway.upstream.http.pool import KEEP_IDLE_S, ConnectionPool, Origin, parse_origin

DEADLINE_S = 20.0
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n2\r\nlo\r\n0\r\n\r\n"
REQUEST = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Server:
    def __init__(self, origin: Origin) -> None:
        self.origin = origin
        self.num_connections = 0
        self.num_closed = 0


@asynccontextmanager
async def serving(serve: Serve) -> AsyncIterator[Server]:
    """`serve` is called for each connection, which is closed after it."""
    server_of: list[Server] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server_of[0].num_connections += 1
        try:
            await serve(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            server_of[0].num_closed += 1
            writer.close()

    listener = await asyncio.start_server(handle, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    server_of.append(Server(parse_origin(f"http://127.0.0.1:{port}")))
    try:
        yield server_of[0]
    finally:
        listener.close()


@asynccontextmanager
async def pool(**deadlines: float) -> AsyncIterator[ConnectionPool]:
    given = {"connect_s": DEADLINE_S, "silence_s": DEADLINE_S, "total_s": DEADLINE_S} | deadlines
    opened = ConnectionPool(**given)
    try:
        async with asyncio.timeout(DEADLINE_S):
            yield opened
    finally:
        opened.close()


async def whole(connection: Connection) -> bytes:
    body = b""
    while chunk := await connection.next_chunk():
        body += chunk
    return body


async def ask(opened: ConnectionPool, server: Server) -> bytes:
    async with opened.request(server.origin, REQUEST) as connection:
        return await whole(connection)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not condition():  # noqa: ASYNC110 (watches the other side of a socket)
            await asyncio.sleep(0.005)


def answering(*answers: bytes, piece: int = 2**20) -> Serve:
    """One answer for each request on a connection, in pieces of `piece` bytes."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for answer in answers:
            await reader.readuntil(b"\r\n\r\n")
            for start in range(0, len(answer), piece):
                writer.write(answer[start : start + piece])
                await writer.drain()
                await asyncio.sleep(0)
        await reader.read()

    return serve


@pytest.mark.parametrize("answer", [ANSWER, CHUNKED, b"HTTP/1.1 100 Continue\r\n\r\n" + ANSWER])
@pytest.mark.parametrize("piece", [1, 7, 1000])
async def test_an_answer_is_read_the_same_however_it_is_cut(answer: bytes, piece: int) -> None:
    async with serving(answering(answer, answer, piece=piece)) as server, pool() as opened:
        assert [await ask(opened, server) for _ in range(2)] == [b"hello"] * 2
        assert server.num_connections == 1, "the connection was kept"


async def test_an_answer_without_length_ends_with_its_connection() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.0 200 OK\r\n\r\nhello")

    async with serving(serve) as server, pool() as opened:
        assert [await ask(opened, server) for _ in range(2)] == [b"hello"] * 2
        assert server.num_connections == 2


async def test_a_kept_connection_that_was_closed_meanwhile_is_replaced_unseen() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(ANSWER)
        # The next request is read and not answered, as by a server that closes idle connections at that moment.
        await reader.read(1)

    async with serving(serve) as server, pool() as opened:
        assert [await ask(opened, server) for _ in range(3)] == [b"hello"] * 3


@pytest.mark.parametrize(
    "answer", [b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhell", b"SSH-2.0-OpenSSH\r\n", b"HTTP/1.1 200 OK\r\n"]
)
async def test_an_answer_that_breaks_off_or_is_none_fails(answer: bytes) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)

    async with serving(serve) as server, pool() as opened:
        with pytest.raises(TransportFailed):
            await ask(opened, server)


async def test_endless_headers_fail() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n")
        while True:
            writer.write(b"x: " + b"y" * 1000 + b"\r\n")
            await writer.drain()

    async with serving(serve) as server, pool() as opened:
        with pytest.raises(TransportFailed):
            await ask(opened, server)


async def test_an_answer_that_is_left_is_ended_at_the_server_at_once() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n")
        await reader.read()

    async with serving(serve) as server, pool() as opened:
        async with opened.request(server.origin, REQUEST) as connection:
            assert await connection.next_chunk() == b"hel"
        await until(lambda: server.num_closed == 1)


async def test_a_stream_whose_end_comes_a_moment_after_its_last_event_keeps_its_connection() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in range(2):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n")
            await may_end.wait()
            writer.write(b"0\r\n\r\n")
        await reader.read()

    may_end = asyncio.Event()
    async with serving(serve) as server, pool() as opened:
        async with opened.request(server.origin, REQUEST) as connection:
            assert await connection.next_chunk() == b"hello"
            connection.may_linger = True
        may_end.set()
        await until(lambda: connection.is_idle)
        assert await ask(opened, server) == b"hello"
        assert server.num_connections == 1


async def test_a_silent_member_fails_and_one_whose_client_is_slow_does_not() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n")
        await reader.read()

    async with (
        serving(serve) as server,
        pool(silence_s=5.0) as opened,
        opened.request(server.origin, REQUEST) as connection,
    ):
        now = asyncio.get_running_loop().time()
        await connection.next_chunk()
        # Nobody waits for the member: the client is busy with what it has.
        opened.sweep(now + 6.0)
        waiting = asyncio.create_task(connection.next_chunk())
        await asyncio.sleep(0)
        opened.sweep(asyncio.get_running_loop().time() + 4.0)
        assert not waiting.done()
        opened.sweep(asyncio.get_running_loop().time() + 6.0)
        with pytest.raises(TransportFailed, match="silent"):
            await waiting


async def test_an_answer_that_takes_too_long_in_all_fails() -> None:
    async with serving(answering(b"")) as server, pool(total_s=5.0) as opened:
        asking = asyncio.create_task(ask(opened, server))
        await until(lambda: server.num_connections == 1)
        opened.sweep(asyncio.get_running_loop().time() + 6.0)
        with pytest.raises(TransportFailed):
            await asking


async def test_a_member_has_to_wait_for_a_slow_client() -> None:
    num_sent = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal num_sent
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.0 200 OK\r\n\r\n")
        while num_sent < 24 * 2**20:
            writer.write(b"x" * 2**16)
            await writer.drain()
            num_sent += 2**16

    async with serving(serve) as server, pool() as opened, opened.request(server.origin, REQUEST) as connection:
        before = -1
        while num_sent != before:
            before = num_sent
            await asyncio.sleep(0.3)
        assert num_sent < 16 * 2**20
        assert len(await connection.next_chunk()) < 4 * HIGH_WATER_BYTES
        assert len(await whole(connection)) > 8 * 2**20


async def test_idle_connections_end() -> None:
    async with serving(answering(ANSWER)) as server, pool() as opened:
        await ask(opened, server)
        opened.sweep(asyncio.get_running_loop().time() + KEEP_IDLE_S + 1)
        await until(lambda: server.num_closed == 1)


async def test_nobody_there_is_the_members_failure_and_no_descriptors_is_ours() -> None:
    async with pool() as opened:
        with pytest.raises(TransportFailed) as refused:
            async with opened.request(parse_origin("http://127.0.0.1:1"), REQUEST):
                pass
    assert not isinstance(refused.value, OutOfResources)
    assert isinstance(as_transport_failure(OSError(errno.EMFILE, "too many open files")), OutOfResources)


class _Failing(Connection):
    def __init__(self, failure: TransportFailed) -> None:
        self._failure = failure

    async def next_chunk(self) -> bytes:
        raise self._failure


@pytest.mark.parametrize(("failure", "is_reachable"), [(OutOfResources("x"), True), (TransportFailed("x"), False)])
async def test_only_failures_of_the_member_keep_requests_away_from_it(
    failure: TransportFailed, is_reachable: bool
) -> None:
    async with pool() as opened:
        answer = Answer(opened, parse_origin("http://a"), _Failing(failure), "w")
        for reading in (answer.next_chunk(), answer.read()):
            with pytest.raises(MemberFailed) as raised:
                await reading
            assert raised.value.is_reachable == is_reachable


@pytest.mark.parametrize(
    "extra",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nEXTRA!",
        b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\nX: ",
        b"HTTP/1.1 200 OK\r\nContent-Length: 60\r\n\r\nEX",
        b"HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
        b"rubbish",
        b"H",
    ],
    ids=["whole", "its head", "a part of its body", "408", "rubbish", "a byte"],
)
async def test_bytes_behind_an_answer_spoil_neither_it_nor_the_next(extra: bytes) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        num_asked = 0
        while True:
            await reader.readuntil(b"\r\n\r\n")
            num_asked += 1
            writer.write(ANSWER + (extra if num_asked == 1 else b""))

    async with serving(serve) as server, pool() as opened:
        for num_connections in (1, 2, 3):
            assert await ask(opened, server) == b"hello"
            assert server.num_connections == num_connections, "none was kept"


@pytest.mark.parametrize(
    ("url", "origin"),
    [
        ("http://a:8000", Origin("a", 8000, False, "", "a:8000")),
        ("https://a.example/v", Origin("a.example", 443, True, "/v", "a.example")),
        ("http://[::1]:9", Origin("::1", 9, False, "", "[::1]:9")),
    ],
)
def test_where_a_members_url_leads(url: str, origin: Origin) -> None:
    assert parse_origin(url) == origin
