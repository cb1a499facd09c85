"""What a client may do before it has a key: bounded in bytes, fields and time, and told so in OpenAI's shape."""

import asyncio
import gc
import json
import logging
import time
from typing import Any

import pytest

from gateway.http.answer import REQUEST_BODY
from gateway.http.connection import MAX_PIPELINED, Connection
from gateway.http.draining import serve_last_requests
from gateway.http.errors import Unavailable
from gateway.http.parsing import MAX_FIELDS, MAX_HEAD_BYTES
from gateway.http.refusal import refusal_of
from tests.support.front_doors import (
    DEADLINE_S,
    Client,
    Served,
    answer,
    parse_head,
    read_body,
    request,
    served,
    status_of,
)

CHUNKED = request("POST", "/", "Transfer-Encoding: chunked")


async def until(condition: Any) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


def check_error(received: bytes, status: int, code: str | None) -> None:
    head, body = received.split(b"\r\n\r\n", 1)
    assert status_of(received) == status, received[:300]
    error = json.loads(body)["error"]
    assert set(error) == {"message", "type", "param", "code"} and error["code"] == code
    headers = parse_head(head)[1]
    assert headers[b"connection"] == b"close" and headers[b"x-request-id"]
    assert headers[b"content-type"] == b"application/json"


@pytest.mark.parametrize(
    "sent",
    [
        b"GET / HTTP/1.1\r\nX: " + b"a" * MAX_HEAD_BYTES,
        b"GET /" + b"a" * MAX_HEAD_BYTES,
        b"GET / HTTP/1.1\r\n" + b"X: a\r\n" * (MAX_FIELDS + 2),
        b"GET / HTTP/1.1\r\n" + b"".join(b"X%d: %b\r\n" % (i, b"a" * 1000) for i in range(99)) + b"\r\n",
        b"\r\n" * MAX_HEAD_BYTES,
    ],
    ids=["one header", "the URL", "many fields", "together", "nothing but line ends"],
)
async def test_headers_beyond_the_bound_are_431_and_reach_no_application(sent: bytes) -> None:
    async with served() as door:
        client = await door.send(sent)
        check_error(await client.read_all(), 431, "headers_too_large")
        assert door.scopes == []


@pytest.mark.parametrize(
    "sent",
    [
        b"GET / HTTP/1.1\r\n" + b"X: a\r\n" * (MAX_FIELDS + 2),
        b"GET / HTTP/1.1\r\nX: " + b"a" * MAX_HEAD_BYTES,
        b"CONNECT a:1 HTTP/1.1\r\n\r\n",
        b"nonsense\r\n\r\n",
        request("GET", "/", "Upgrade: h2c", "Connection: Upgrade, close"),
        request("GET", "/", "Connection: close"),
    ],
    ids=["many fields", "a long one", "CONNECT", "rubbish", "an upgrade", "well"],
)
async def test_nothing_of_a_connection_waits_for_the_garbage_collector(sent: bytes) -> None:
    async with served() as door:
        gc.collect()
        gc.disable()
        try:
            client = await door.send(sent)
            await client.read_all()
            await until(lambda: door.num_connections == 0)
            await until(lambda: not [each for each in gc.get_objects() if type(each) is Connection])
        finally:
            gc.enable()


async def test_headers_up_to_the_bound_pass_in_one_piece_and_in_many() -> None:
    head = request("GET", "/", *(f"X-{i}: {'a' * 600}" for i in range(MAX_FIELDS - 1)))
    assert MAX_HEAD_BYTES * 0.9 < len(head) <= MAX_HEAD_BYTES
    async with served() as door:
        whole = await door.send(head)
        assert (await whole.read_answer())[0] == 200
        pieces = await door.send(*(head[i : i + 7001] for i in range(0, len(head), 7001)))
        assert (await pieces.read_answer())[0] == 200
        whole.close(), pieces.close()


_LARGE = request("POST", "/", body=b"x" * 65400)
_NEXT = request("GET", "/b", *(f"X-{i}: {'y' * 50}" for i in range(10)))


@pytest.mark.parametrize(
    "parts",
    [
        [_LARGE + _NEXT],
        [_LARGE + _NEXT[:200], _NEXT[200:]],
        [_LARGE[:40000], _LARGE[40000:] + _NEXT[:100], _NEXT[100:]],
        [CHUNKED + b"f000\r\n" + b"x" * 0xF000 + b"\r\n0\r\n\r\n" + _NEXT[:-9], _NEXT[-9:]],
    ],
    ids=["in one", "cut in the head", "cut in both", "chunks"],
)
async def test_a_small_head_behind_a_large_body_passes(parts: list[bytes]) -> None:
    async with served() as door:
        client = await door.send()
        for part in parts:
            await client.send(part)
            await asyncio.sleep(0.02)
        assert [(await client.read_answer())[0] for _ in range(2)] == [200, 200]
        assert [scope["path"] for scope in door.scopes] == ["/", "/b"]
        client.close()


@pytest.mark.parametrize("end", [b"\r\n\r\n", b""], ids=["whole", "unfinished"])
@pytest.mark.parametrize("cut", [100, MAX_HEAD_BYTES - 6000, None])
async def test_a_large_head_behind_a_body_is_refused_all_the_same(end: bytes, cut: int | None) -> None:
    head = b"GET /b HTTP/1.1\r\nX: " + b"y" * (MAX_HEAD_BYTES + 10_000) + end
    async with served() as door:
        client = await door.send(request("POST", "/", body=b"x" * 5000) + head[:cut])
        assert (await client.read_answer())[0] == 200
        if cut is not None:
            # The first request is answered by now; until then a refusal only ends the connection after it.
            await client.send(head[cut:])
            check_error(await client.read_all(), 431, "headers_too_large")
        else:
            assert await client.read_all() == b""
        assert door.door.refused == {"headers too large": 1}
        assert [scope["path"] for scope in door.scopes] == ["/"]


async def test_an_endless_header_is_read_no_further_than_its_bound() -> None:
    async with served() as door:
        client = await door.send(b"GET / HTTP/1.1\r\n")
        for _ in range(1600):
            await client.send(b"X: a\r\n" * 10_000)
        await until(lambda: door.num_connections == 0)
        assert door.door.refused == {"headers too large": 1}
        client.close()


@pytest.mark.parametrize(
    "sent",
    [
        b"\x16\x03\x01\x02\x00\x01\x00",
        b"hello\r\n\r\n",
        b"FOO / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET / HTTP/2.0\r\n\r\n",
        b"GET /\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"CONNECT a:443 HTTP/1.1\r\n\r\n",
        b"GET /\x00 HTTP/1.1\r\n\r\n",
        b"GET /%00 HTTP/1.1\r\n\r\n",
        b"GET /a%0d%0ab HTTP/1.1\r\n\r\n",
        b"GET /?a=%00 HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nX: a\x00b\r\n\r\n",
        b"GET / HTTP/1.1\r\nX : a\r\n\r\n",
        b"GET / HTTP/1.1\r\nX: a\r\n folded\r\n\r\n",
        b"GET / HTTP/1.1\nX: a\n\n",
        b"POST / HTTP/1.1\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: 3\r\nContent-Length: 3\r\n\r\nabc",
        b"POST / HTTP/1.1\r\nContent-Length: -3\r\n\r\nabc",
        b"POST / HTTP/1.1\r\nContent-Length: 99999999999999999999\r\n\r\nabc",
    ],
)
async def test_what_is_no_request_is_400_and_reaches_no_application(sent: bytes) -> None:
    async with served() as door:
        received = await (await door.send(sent)).read_all()
        assert status_of(received) == 400
        assert b'"error"' in received
        assert door.scopes == []


@pytest.mark.parametrize(
    "body",
    [
        b"zz\r\n",
        b"-1\r\n",
        b"ffffffffffffffffff\r\n",
        b"3\r\nabcd\r\n",
        b"5;" + b"a" * 100_000,
        b"1;" + b"a" * 50 + b"\r\nx\r\n" + b"1;aaaaaaaaaaaaaaaaaaaaaa\r\nx\r\n" * 4000,
        b"0\r\n" + b"X: y\r\n" * (MAX_FIELDS + 2),
        b"0\r\nX: " + b"y" * 100_000,
    ],
    ids=["no number", "negative", "overflow", "too long", "endless extension", "extensions", "trailers", "trailer"],
)
async def test_a_body_in_bad_chunks_is_refused_and_its_request_let_go(body: bytes) -> None:
    async with served() as door:
        client = await door.send(CHUNKED)
        await until(lambda: door.scopes)
        await client.send(body)
        assert status_of(await client.read_all()) in (400, 431)
        await until(lambda: door.num_gone == 1)
        assert door.bodies == []


async def test_trailers_never_become_headers() -> None:
    async with served() as door:
        client = await door.send(CHUNKED)
        await until(lambda: door.scopes)
        await client.send(b"3\r\nabc\r\n0\r\nAuthorization: Bearer x\r\n\r\n")
        assert (await client.read_answer())[0] == 200
        assert door.bodies == [b"abc"]
        assert [name for name, _ in door.scopes[0]["headers"]] == [b"host", b"transfer-encoding"]
        client.close()


async def test_slow_headers_are_408_and_silence_is_closed() -> None:
    async with served(head_s=0.2) as door:
        silent = await door.send()
        check_error(await (await door.send(b"GET / HTTP/1.1\r\nX: a")).read_all(), 408, "head_timeout")
        assert await silent.read_all() == b""


@pytest.mark.parametrize("sent", [b"G", b"\r\n", b"GET / HTTP/1.1\r\n"])
async def test_the_first_head_has_its_time_from_connecting(sent: bytes) -> None:
    async with served(head_s=1.0, stalled_s=0.4) as door:
        client = await door.send()
        await until(lambda: door.num_connections)
        connected_at = door.door.now
        await until(lambda: door.door.now > connected_at + 0.7)
        await client.send(sent)
        await client.read_all()
        assert door.door.now < connected_at + 1.5


async def test_headers_that_trickle_get_no_more_time() -> None:
    async with served(head_s=0.2) as door:
        client = await door.send(b"GET / HTTP/1.1\r\n")
        reading = asyncio.create_task(client.read_all())
        while not reading.done():
            await client.send(b"X: a\r\n")
            await asyncio.sleep(0.02)
        check_error(reading.result(), 408, "head_timeout")


async def test_the_head_of_a_later_request_has_its_own_time_and_idling_another() -> None:
    async with served(head_s=0.2, keep_alive_s=DEADLINE_S * 2) as door:
        client = await door.send(request())
        assert (await client.read_answer())[0] == 200
        before = door.door.now
        await until(lambda: door.door.now > before + 0.5)
        await client.send(request())
        assert (await client.read_answer())[0] == 200
        await client.send(b"GET /")
        check_error(await client.read_all(), 408, "head_timeout")


async def test_an_idle_connection_is_closed() -> None:
    async with served(keep_alive_s=0.2) as door:
        client = await door.send(request())
        assert status_of(await client.read_all()) == 200
        await until(lambda: door.num_connections == 0)


@pytest.mark.parametrize("sent", [request("POST", "/", "Content-Length: 5") + b"abc", CHUNKED + b"5\r\nab"])
async def test_a_slow_body_is_408_and_its_request_let_go(sent: bytes) -> None:
    async with served(body_s=0.2) as door:
        check_error(await (await door.send(sent)).read_all(), 408, "body_timeout")
        await until(lambda: door.num_gone == 1)


async def test_a_body_that_we_do_not_take_is_not_its_clients_fault() -> None:
    go_on = asyncio.Event()

    async def wait_first(running: Served, scope: Any, receive: Any, send: Any) -> None:
        await go_on.wait()
        await answer(send, str(len(await read_body(running, receive) or b"")).encode())

    body = b"x" * 3_000_000
    async with served(wait_first, body_s=0.2) as door:
        client = await door.send(request("POST", "/", f"Content-Length: {len(body)}"))
        sending = asyncio.create_task(client.send(body))
        before = door.door.now
        await until(lambda: door.door.now > before + 1)
        go_on.set()
        await sending
        assert (await client.read_answer())[2] == str(len(body)).encode()
        client.close()


async def test_a_client_that_does_not_read_is_cut_and_its_request_told() -> None:
    gone = asyncio.Event()

    async def endless(running: Served, scope: Any, receive: Any, send: Any) -> None:
        async def watch() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass
            gone.set()

        async with asyncio.TaskGroup() as group:
            group.create_task(watch())
            await send({"type": "http.response.start", "status": 200, "headers": []})
            while not gone.is_set():
                await send({"type": "http.response.body", "body": b"x" * 65536, "more_body": True})
                await asyncio.sleep(0)

    async with served(endless, stalled_s=0.3) as door:
        client = await door.send(request())
        async with asyncio.timeout(DEADLINE_S):
            await gone.wait()
        await until(lambda: door.num_connections == 0)
        assert door.door.refused == {"client did not read": 1}
        client.close()


@pytest.mark.parametrize("connection", ["keep-alive", "close"])
async def test_a_short_answer_left_unread_does_not_hold_its_connection(connection: str) -> None:
    """The application is done with it; the connection must not wait for ever to be rid of the rest."""

    async def megabytes(running: Served, scope: Any, receive: Any, send: Any) -> None:
        await answer(send, b"x" * 20_000_000)
        running.bodies.append(b"answered")

    async with served(megabytes, stalled_s=0.3, keep_alive_s=0.3) as door:
        client = await door.send(request("GET", "/", f"Connection: {connection}"))
        await until(lambda: door.bodies)
        await until(lambda: door.num_connections == 0)
        client.close()


async def test_a_connection_beyond_the_bound_is_told_and_room_comes_back() -> None:
    async with served(max_connections=20) as door:
        waiting = [await door.send(b"GET / HT") for _ in range(20)]
        await until(lambda: door.num_connections == 20)
        check_error(await (await door.send()).read_all(), 503, "unavailable")
        for client in waiting:
            client.close()
        await until(lambda: door.num_connections == 0)
        again = await door.send(request())
        assert (await again.read_answer())[0] == 200
        again.close()


@pytest.mark.parametrize("names", [("X-A", "X-B", "X-C", "X-D"), ("X-A",) * 4], ids=["parsed", "known"])
@pytest.mark.parametrize("is_read", [True, False])
async def test_an_idle_connection_keeps_nothing_of_its_last_body(names: tuple[str, ...], is_read: bool) -> None:
    async with served(None if is_read else refuse_unread) as door:
        client = await door.send()
        for name in names:
            await client.send(request("POST", "/", f"{name}: 1", body=b"x" * 60_000))
            assert (await client.read_answer())[0] == (200 if is_read else 401)
        assert [len(body) for body in door.bodies] == [60_000] * 4 * is_read
        [connection] = door.server.server_state.connections
        assert isinstance(connection, Connection) and connection.is_idle
        kept = [connection.cycle.body, connection.scope.get(REQUEST_BODY, b"")]
        assert sum(map(len, kept)) == 0
        client.close()


async def test_when_it_is_crowded_those_who_wait_go_first() -> None:
    async with served(max_connections=20) as door:
        idle = [await door.send(request()) for _ in range(19)]
        for client in idle:
            assert (await client.read_answer())[0] == 200
        assert [await client.read_all() for client in idle] == [b""] * 19


async def test_when_it_is_crowded_a_new_connection_has_a_moment_to_ask() -> None:
    async with served(max_connections=20, head_s=DEADLINE_S * 2) as door:
        half = [await door.send(b"GET / HT") for _ in range(18)]
        new, silent = await door.send(), await door.send()
        await until(lambda: door.num_connections == 20)
        before = door.door.now
        await until(lambda: door.door.now > before)
        await new.send(request())
        assert (await new.read_answer())[0] == 200
        assert await silent.read_all() == b"", "it said nothing for two seconds"
        assert await new.read_all() == b""
        for client in half:
            await client.send(b"TP/1.1\r\n\r\n")
            assert (await client.read_answer())[0] == 200
            client.close()


async def test_pipelined_requests_are_answered_in_order_and_bounded() -> None:
    async with served() as door:
        client = await door.send(b"".join(request("GET", f"/{i}") for i in range(10_000)))
        received = await client.read_all()
        assert received.count(b"HTTP/1.1 200") == MAX_PIPELINED + 1
        assert [scope["path"] for scope in door.scopes] == [f"/{i}" for i in range(MAX_PIPELINED + 1)]


async def test_rubbish_behind_a_request_does_not_touch_its_answer() -> None:
    async with served() as door:
        received = await (await door.send(request() + b"\x00\x01rubbish")).read_all()
        assert received.startswith(b"HTTP/1.1 200") and received.endswith(b"\r\n\r\nok")


async def test_a_client_that_leaves_with_requests_in_line_is_told_to_the_first() -> None:
    async with served(lambda running, scope, receive, send: _wait_for_leaving(running, receive)) as door:
        client = await door.send(request() + request())
        await until(lambda: door.server.server_state.tasks)
        client.close()
        await until(lambda: door.num_gone == 1)


async def _wait_for_leaving(running: Served, receive: Any) -> None:
    while await read_body(running, receive) is not None:
        pass


async def test_half_a_connection_is_a_client_that_left() -> None:
    async with served(lambda running, scope, receive, send: _wait_for_leaving(running, receive)) as door:
        client = await door.send(request())
        await until(lambda: door.server.server_state.tasks)
        client.writer.write_eof()
        assert await client.read_all() == b""
        assert door.num_gone == 1


async def test_http_1_0_gets_no_chunks() -> None:
    async def stream(running: Served, scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for part in (b"a", b"b", b""):
            await send({"type": "http.response.body", "body": part, "more_body": part != b""})

    async with served(stream) as door:
        old = await (await door.send(b"GET / HTTP/1.0\r\n\r\n")).read_all()
        assert old.endswith(b"\r\n\r\nab") and b"chunked" not in old and b"connection: close" in old
        new = await (await door.send(request("GET", "/", "Connection: close"))).read_all()
        assert new.endswith(b"\r\n\r\n1\r\na\r\n1\r\nb\r\n0\r\n\r\n") and b"transfer-encoding: chunked" in new


async def test_upgrades_are_ignored_quietly(caplog: pytest.LogCaptureFixture) -> None:
    async with served() as door:
        for upgrade in ("websocket", "h2c"):
            client = await door.send(
                request("POST", "/", "Connection: Upgrade, HTTP2-Settings", f"Upgrade: {upgrade}", body=b"abc")
                + request()
            )
            assert [(await client.read_answer())[0] for _ in range(2)] == [200, 200]
            client.close()
    assert door.bodies == [b"abc", b""] * 2
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


async def test_a_crowd_of_upgrade_offers_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    """Under overload each is answered while the rest of the data is parsed, so nothing else bounds their number."""
    offer = request("POST", "/", "Connection: Upgrade", "Upgrade: a", "Content-Length: 0")
    async with served() as door:
        door.door.turn_away = lambda _scope: refusal_of(Unavailable("busy", retry_after_s=1))
        answers = await (await door.send(offer * 400)).read_all()
    assert 16 < answers.count(b"HTTP/1.1 503") < 400
    assert answers.count(b"HTTP/1.1 400") == 1 and b"too many upgrade offers" in answers
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


async def test_an_upgrade_offer_of_an_old_client_is_answered_as_such() -> None:
    async def stream(running: Served, scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"a", "more_body": False})

    async with served(stream) as door:
        old = await (await door.send(b"GET / HTTP/1.0\r\nUpgrade: a\r\nConnection: upgrade\r\n\r\n")).read_all()
    assert old.endswith(b"\r\n\r\na") and b"chunked" not in old


async def test_expect_100_continue_is_told_to_go_on() -> None:
    async with served() as door:
        client = await door.send(request("POST", "/", "Expect: 100-continue", "Content-Length: 3"))
        assert await client.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        await client.send(b"abc")
        assert (await client.read_answer())[0] == 200
        client.close()


async def refuse_unread(running: Served, scope: Any, receive: Any, send: Any) -> None:
    await answer(send, b"no", 401)


async def test_an_answer_before_a_short_body_keeps_the_connection() -> None:
    async with served(refuse_unread) as door:
        client = await door.send(request("POST", "/", "Content-Length: 3"))
        status, headers, _ = await client.read_answer()
        assert status == 401 and b"connection" not in headers
        await client.send(b"abc" + request())
        assert (await client.read_answer())[0] == 401
        client.close()


@pytest.mark.parametrize(
    ("length", "body"),
    [
        ("Content-Length: 1000000000000", b"x" * 30_000_000),
        ("Transfer-Encoding: chunked", (b"8000\r\n" + b"x" * 0x8000 + b"\r\n") * 1000),
    ],
)
async def test_an_answer_before_a_long_body_arrives_and_ends_the_connection(length: str, body: bytes) -> None:
    async with served(refuse_unread) as door:
        client = await Client.connect(door.port)
        await client.send(request("POST", "/", length))
        sending = asyncio.create_task(client.send(body))
        status, headers, said = await client.read_answer()
        assert (status, headers[b"connection"], said) == (401, b"close", b"no")
        await client.read_all()
        await sending
        await until(lambda: door.num_connections == 0)


async def test_many_refusals_are_one_line_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async with served(head_s=0.2) as door:
        for _ in range(50):
            await (await door.send(b"rubbish\r\n\r\n")).read_all()
        before = door.door.now
        await until(lambda: door.door.now > before + 0.2)
    [line] = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert "invalid HTTP" in line


async def test_a_header_that_would_begin_another_line_is_a_bug_of_ours_and_not_sent() -> None:
    async def split(running: Served, scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"x", b"a\r\nset-cookie: b")]})

    async with served(split) as door:
        received = await (await door.send(request())).read_all()
        assert b"set-cookie" not in received


async def test_the_clock_stands_still_while_the_loop_is_blocked() -> None:
    """Otherwise a pause of ours would cost clients whose bytes wait in the socket their connections."""
    async with served(head_s=0.4) as door:
        client = await door.send(b"GET / HT")
        await until(lambda: door.num_connections)
        time.sleep(1)  # noqa: ASYNC251
        await client.send(b"TP/1.1\r\n\r\n")
        assert (await client.read_answer())[0] == 200
        client.close()


async def test_the_request_after_a_stream_is_answered_by_a_server_that_stops() -> None:
    release = asyncio.Event()

    async def app(running: Served, scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] == "/stream":
            await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
            await send({"type": "http.response.body", "body": b"a", "more_body": True})
            await release.wait()
            await send({"type": "http.response.body", "body": b"b"})
        else:
            await answer(send, b"ok")

    async with served(app) as door:
        client = await door.send(request("GET", "/stream"))
        async with asyncio.timeout(DEADLINE_S):
            assert (await client.reader.readuntil(b"\r\n\r\na")).endswith(b"a")
            state = door.server.server_state
            await serve_last_requests(state, grace_s=0, is_hurried=lambda: False)
            for connection in state.connections:
                connection.shutdown()
            release.set()
            assert await client.reader.readexactly(1) == b"b"
        await client.send(request())
        status, headers, _ = await client.read_answer()
        assert (status, headers[b"connection"]) == (200, b"close")
        assert await client.read_all() == b""


async def test_a_server_that_stops_waits_for_it_only_a_moment() -> None:
    async def app(running: Served, scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"1")]})
        await serve_last_requests(running.server.server_state, grace_s=0, is_hurried=lambda: False)
        await send({"type": "http.response.body", "body": b"a"})

    async with served(app) as door:
        client = await door.send(request())
        received = await client.read_all()
        assert received.endswith(b"\r\n\r\na") and b"connection: close" not in received.lower()
