"""Requests whose head was compared with the one before are what they would be if they had been parsed."""

import asyncio
import random
import re
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.http.answer import REQUEST_BODY
from gateway.http.connection import Connection
from gateway.http.errors import Unavailable
from gateway.http.known_head import known_head
from gateway.http.refusal import refusal_of
from tests.support.front_doors import DEADLINE_S, Client, Served, answer, read_body, request, served

HEADERS = (
    ("Authorization: Bearer tg-abc", "Content-Type: application/json"),
    ("Authorization: Bearer tg-abc", "Content-Type: application/json", "X-Other: 1"),
    ("authorization: Bearer tg-xyz",),
    ("X-Content-Length: 7", "Content-Length-Too: 7"),
)
requests = st.lists(
    st.tuples(
        st.sampled_from(HEADERS), st.sampled_from(("/a", "/a?b=c", "/%61")), st.binary(max_size=30), st.booleans()
    ),
    min_size=1,
    max_size=12,
)


def scope_of(data: bytes) -> dict[str, Any]:
    lines = data.split(b"\r\n\r\n")[0].split(b"\r\n")[1:]
    return {"headers": [(name.lower(), value) for name, value in (line.split(b": ", 1) for line in lines)]}


def seen(door: Served) -> list[Any]:
    own = ("client", "server", REQUEST_BODY)
    told = [scope.get(REQUEST_BODY, body) for scope, body in zip(door.scopes, door.bodies, strict=True)]
    assert told == door.bodies
    return [[{name: value for name, value in scope.items() if name not in own} for scope in door.scopes], door.bodies]


async def ask(client: Client, data: bytes, *, in_two: bool) -> None:
    if in_two:
        await client.send(data[:20])
        await asyncio.sleep(0.001)
        data = data[20:]
    await client.send(data)
    status, _, body = await client.read_answer()
    assert (status, body) == (200, b"ok")


@settings(max_examples=40, deadline=None)
@given(requests=requests)
def test_one_connection_sees_what_many_see(requests: list[tuple[tuple[str, ...], str, bytes, bool]]) -> None:
    async def both() -> None:
        async with served() as together, served() as apart:
            client = await together.send()
            for headers, path, body, in_two in requests:
                sent = request("POST", path, *headers, body=body)
                await ask(client, sent, in_two=in_two)
                other = await apart.send()
                await ask(other, sent, in_two=False)
                other.close()
            client.close()
            assert seen(together) == seen(apart)

    asyncio.run(both())


async def test_what_follows_a_repeated_head_is_read_as_ever() -> None:
    """More than the body, less than it, and requests that are none."""
    first, other = request("POST", "/", body=b"abc"), request("POST", "/", body=b"abcdefghijk")
    async with served() as door:
        client = await door.send()
        for _ in range(3):
            await ask(client, first, in_two=False)
        (connection,) = door.server.server_state.connections
        assert isinstance(connection, Connection)
        assert connection.num_parsed == 2
        await client.send(first + other + first[:30])
        for _ in range(2):
            assert (await client.read_answer())[0] == 200
        await client.send(first[30:])
        assert (await client.read_answer())[0] == 200
        await client.send(other[:-4])
        await asyncio.sleep(0.01)
        await client.send(other[-4:] + first)
        for _ in range(2):
            assert (await client.read_answer())[0] == 200
        assert door.bodies == [b"abc"] * 4 + [b"abcdefghijk", b"abc", b"abcdefghijk", b"abc"]
        await client.send(first.replace(b"Length: 3", b"Length: +3"))
        received = await client.read_all()
        assert received.startswith(b"HTTP/1.1 400"), received


async def test_a_head_whose_request_was_refused_is_remembered_too() -> None:
    """Under overload a new connection may see nothing but refusals, which must cost as little as on an old one."""
    async with served() as door:
        door.door.turn_away = lambda _scope: refusal_of(Unavailable("busy", retry_after_s=1))
        client = await door.send()
        for _ in range(5):
            await client.send(request("POST", "/", body=b"abc"))
            assert (await client.read_answer())[0] == 503
        (connection,) = door.server.server_state.connections
        assert isinstance(connection, Connection)
        assert connection.num_parsed == 2
        door.door.turn_away = None
        await ask(client, request("POST", "/", body=b"abcde"), in_two=False)
        assert (connection.num_parsed, door.bodies) == (2, [b"abcde"])
        client.close()


@pytest.mark.parametrize(
    "data",
    [
        request("POST", "/", "Transfer-Encoding: chunked") + b"0\r\n\r\n",
        request("POST", "/", "Expect: 100-continue", body=b"a"),
        request("POST", "/", "Content-Length: 1", body=b"a"),
        request("POST", "/", body=b"abc") + b"d",
        request("POST", "/", body=b"abc")[:-1],
        request("GET", "/"),
        b"POST / HTTP/1.1\r\nX: \r\n Content-Length: 1\r\n\r\na",
    ],
    ids=["chunks", "expect", "two lengths", "too much", "too little", "no body", "a folded line"],
)
def test_only_a_whole_request_with_one_length_is_remembered(data: bytes) -> None:
    scope = scope_of(data.replace(b"X: \r\n ", b"X: "))
    assert known_head(data, scope) is None


def test_a_remembered_head_takes_another_length_and_nothing_else() -> None:
    data = request("POST", "/", "Content-Length: 3", "X: y") + b"abc"
    known = known_head(data, scope_of(data))
    assert known is not None
    assert known.body_in(data) == b"abc"
    longer = request("POST", "/", "content-length: 10".title(), "X: y") + b"0123456789"
    assert known.body_in(longer) == b"0123456789"
    assert known.scope_for(b"0123456789")["headers"] == scope_of(longer)["headers"]
    empty = request("POST", "/", "Content-Length: 0", "X: y")
    assert known.body_in(empty) == b""
    for other in (
        longer[:-1],
        longer + b"0",
        data.replace(b"X: y", b"X: z"),
        data.replace(b"Length: 3", b"Length: "),
        data.replace(b"Length: 3", b"Length: -3"),
        data.replace(b"Length: 3", b"Length: 3 "),
        data.replace(b"Length: 3", "Length: ٣".encode()),
        data.replace(b"Length: 3", b"Length: " + b"0" * 20 + b"3"),
        data.replace(b"POST", b"post"),
        b"",
    ):
        assert known.body_in(other) is None, other


BASES = (
    request("POST", "/v1/x?a=b", "Authorization: Bearer k", "Content-Type: application/json", body=b'{"a":1}'),
    b"POST / HTTP/1.1\r\nHost: a\r\ncontent-length:7 \t\r\nX: y\r\n\r\nabcdefg",
    b"\r\nPUT /y HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc",
)
SPLICED = (
    *(b"\r\n", b"\n", b"\r", b" ", b"\t", b":", b"0", b"9", b"+", b"-", b"\0", b"\r\n\r\n", b"0\r\n\r\n"),
    *(b"Content-Length: 3\r\n", b"Transfer-Encoding: chunked\r\n", b"Expect: 100-continue\r\n"),
    *(b"Connection: close\r\n", b"Upgrade: h2c\r\nConnection: upgrade\r\n", b"GET /z HTTP/1.1\r\nHost: a\r\n\r\n"),
)


def altered(data: bytes, chance: random.Random) -> bytes:
    for _ in range(chance.randint(1, 2)):
        at, way = chance.randint(0, len(data)), chance.random()
        if way < 0.3:
            data = data[:at] + chance.choice(SPLICED) + data[at:]
        elif way < 0.5:
            lines = data.split(b"\r\n")
            lines.insert(chance.randint(0, len(lines) - 1), chance.choice(SPLICED).rstrip(b"\r\n"))
            data = b"\r\n".join(lines)
        elif way < 0.7:
            data = data[:at] + data[at + chance.randint(1, 3) :]
        elif way < 0.85:
            data = data[:at] + bytes([chance.randrange(256)]) + data[at + 1 :]
        else:
            data = data.replace(b"1.1", b"1.0", 1) if chance.random() < 0.3 else data + chance.choice(SPLICED)
    return data


class Heard:
    """What a client got since `begin`, and what the application saw of it."""

    def __init__(self, client: Client, door: Served) -> None:
        self._client, self._door = client, door
        self._port = client.writer.get_extra_info("sockname")[1]
        self._received = b""
        self._num_before = 0

    def begin(self) -> "asyncio.Task[None]":
        self._num_before = len(self._scopes)
        return asyncio.create_task(self._read())

    async def _read(self) -> None:
        with suppress(ConnectionError):
            while piece := await self._client.reader.read(65536):
                self._received += piece
        self._received += b"<the end>"

    @property
    def outcome(self) -> tuple[bytes, list[Any]]:
        return re.sub(rb"(x-request-id|date): [^\r]*", b"", self._received), self._scopes[self._num_before :]

    @property
    def _scopes(self) -> list[Any]:
        own = ("client", "server", "state", REQUEST_BODY)
        return [
            {name: value for name, value in scope.items() if name not in own}
            for scope in self._door.scopes
            if scope["client"][1] == self._port
        ]


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_altered_bytes_mean_the_same_behind_a_known_head_and_on_a_fresh_connection(seed: int) -> None:
    chance = random.Random(seed)
    patient = dict.fromkeys(("head_s", "body_s", "keep_alive_s"), DEADLINE_S * 2)

    async def tell(running: Served, scope: Any, receive: Any, send: Any) -> None:
        body = await read_body(running, receive)
        running.scopes.append(dict(scope) | {"body": body})
        if body is not None:
            await answer(send, b"ok")

    async def check(base: bytes, sent: bytes) -> None:
        one, other = await known.send(), await fresh.send()
        for _ in range(3):
            await ask(one, base, in_two=False)
        heard = [Heard(one, known), Heard(other, fresh)]
        reading = [each.begin() for each in heard]
        for client in (one, other):
            await client.send(sent)
        with suppress(TimeoutError):
            async with asyncio.timeout(DEADLINE_S):
                await asyncio.sleep(0.3)
                while heard[0].outcome != heard[1].outcome:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
        assert heard[0].outcome == heard[1].outcome, sent
        for task, client in zip(reading, (one, other), strict=True):
            task.cancel()
            client.close()

    async with served(tell, **patient) as known, served(tell, **patient) as fresh, asyncio.TaskGroup() as group:
        for _ in range(150):
            base = chance.choice(BASES)
            group.create_task(check(base, altered(base, chance)))
