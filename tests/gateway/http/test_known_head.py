"""Requests whose head was compared with the one before are what they would be if they had been parsed."""

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.http.answer import REQUEST_BODY
from gateway.http.connection import Connection
from gateway.http.known_head import known_head
from tests.support.front_doors import Client, Served, request, served

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
