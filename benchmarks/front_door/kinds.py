"""Some fifty ways to misuse an HTTP server. Each is harmless to a server that bounds what it accepts.

Many use a valid key, since a customer can be as careless as a stranger.
"""

import asyncio
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count, cycle
from multiprocessing.synchronize import Event

from benchmarks.front_door.acts import Act, Victim, byte_by_byte, endless, flood, held, left, unread


@dataclass(frozen=True)
class Abuse:
    name: str
    act: Act
    is_short: bool = False
    """Whether it is one of the few kinds that every test run tries."""


def _same(payload: Callable[[Victim], bytes]) -> Callable[[Victim], Iterator[bytes]]:
    return lambda victim: cycle([payload(victim)])


def _raw(payload: bytes, *, at_once: int = 8) -> Act:
    return flood(lambda _: cycle([payload]), at_once=at_once)


def _unknown_keys(victim: Victim) -> Iterator[bytes]:
    for i in count():
        yield victim.post(b"{}", key=f"tg-{i:08d}-{'x' * 40}")


def _paths(victim: Victim) -> Iterator[bytes]:
    for i in count():
        yield victim.head(method="GET", path=f"/{'../' * (i % 50)}{i}?{'a=b&' * 1000}") + b"\r\n"


def _logins(victim: Victim) -> Iterator[bytes]:
    for i in count():
        body = b"key=guess-%d" % i
        lines = ["POST /dashboard/login HTTP/1.1", "Host: a", "Content-Type: application/x-www-form-urlencoded"]
        yield "\r\n".join([*lines, f"Content-Length: {len(body)}"]).encode() + b"\r\n\r\n" + body


def _with_key(body: bytes, *, at_once: int = 4) -> Act:
    return flood(_same(lambda victim: victim.post(body, key=victim.key)), at_once=at_once)


_GET = b"GET /health HTTP/1.1\r\nHost: a\r\n"
_CHUNKED = "Transfer-Encoding: chunked"

ABUSES = [
    # Headers.
    Abuse("one endless header", endless(lambda _: _GET + b"X: ", b"a" * 65536), is_short=True),
    Abuse("headers without end", endless(lambda _: _GET, b"X: a\r\n" * 10_000), is_short=True),
    Abuse("an endless URL", endless(lambda _: b"GET /", b"a" * 65536)),
    Abuse("empty lines without end", endless(lambda _: b"", b"\r\n" * 32768)),
    Abuse("10,000 headers", _raw(_GET + b"X: a\r\n" * 10_000 + b"\r\n"), is_short=True),
    Abuse("as many headers as may be", _raw(_GET + b"X: %b\r\n" % (b"a" * 600) * 98 + b"\r\n")),
    Abuse("300 silent connections", held(lambda _: b"")),
    Abuse("300 half-sent requests", held(lambda _: _GET), is_short=True),
    Abuse("300 trickling requests", held(lambda _: _GET + b"X: ", trickle=b"a")),
    Abuse("requests byte by byte", byte_by_byte(lambda _: _GET + b"\r\n")),
    Abuse("connections that are closed at once", flood(lambda _: cycle([b""]), at_once=4)),
    Abuse("connections that are reset at once", left(lambda _: b"")),
    Abuse("TLS to a plain port", _raw(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"a" * 500)),
    Abuse("rubbish", _raw(bytes(range(256)) * 16)),
    Abuse("zero bytes", _raw(b"GET /\0 HTTP/1.1\r\nX: \0\r\n\r\n")),
    Abuse("HTTP/2 by prior knowledge", _raw(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0" * 100)),
    Abuse("HTTP/0.9", _raw(b"GET /\r\n\r\n")),
    Abuse("unknown methods", _raw(b"BREW / HTTP/1.1\r\n\r\n")),
    Abuse("folded headers", _raw(_GET + b"X: a\r\n b\r\n\r\n")),
    Abuse("bare line feeds", _raw(b"GET / HTTP/1.1\nHost: a\n\n")),
    Abuse("CONNECT", _raw(b"CONNECT evil.example:443 HTTP/1.1\r\nHost: a\r\n\r\n")),
    Abuse("another host's URL", _raw(b"GET http://evil.example/ HTTP/1.1\r\nHost: a\r\n\r\n")),
    Abuse("upgrades", _raw(_GET + b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: a\r\n\r\n")),
    Abuse("unknown paths with giant queries", flood(_paths)),
    Abuse("OPTIONS", _raw(b"OPTIONS /admin/v1/tenants HTTP/1.1\r\nHost: a\r\n\r\n")),
    # Bodies.
    Abuse("300 bodies that do not come", held(lambda v: v.head("Content-Length: 1000", key=v.key) + b"\r\n{")),
    Abuse(
        "100 bodies that trickle",
        held(lambda v: v.head("Content-Length: 1000", key=v.key) + b"\r\n{", connections=100, trickle=b" "),
        is_short=True,
    ),
    Abuse("bodies cut short", left(lambda v: v.head("Content-Length: 1000", key=v.key) + b"\r\n{")),
    Abuse(
        "an endless body from a stranger",
        endless(lambda v: v.head("Content-Length: 1000000000000") + b"\r\n", b"a" * 65536),
    ),
    Abuse(
        "an endless body in chunks",
        endless(lambda v: v.head(_CHUNKED, key=v.key) + b"\r\n", b"8000\r\n" + b"a" * 0x8000 + b"\r\n"),
    ),
    Abuse(
        "chunks of one byte",
        endless(lambda v: v.head(_CHUNKED, key=v.key) + b"\r\n", b"1\r\na\r\n" * 10_000),
        is_short=True,
    ),
    Abuse("an endless chunk extension", endless(lambda v: v.head(_CHUNKED, key=v.key) + b"\r\n1;", b"a" * 65536)),
    Abuse("trailers without end", endless(lambda v: v.head(_CHUNKED, key=v.key) + b"\r\n0\r\n", b"X: a\r\n" * 10_000)),
    Abuse("bad chunks", flood(_same(lambda v: v.head(_CHUNKED, key=v.key) + b"\r\nzz\r\n"))),
    Abuse("two lengths", flood(_same(lambda v: v.post(b"{}", "Content-Length: 3")))),
    Abuse("a length and chunks", flood(_same(lambda v: v.post(b"0\r\n\r\n", _CHUNKED)))),
    Abuse(
        "100-continue and nothing more",
        held(lambda v: v.head("Expect: 100-continue", "Content-Length: 9", key=v.key) + b"\r\n"),
    ),
    Abuse("bodies above the bound", _with_key(b"a" * (9 * 2**20), at_once=1)),
    Abuse("JSON 200,000 deep", _with_key(b'{"messages":' + b"[" * 200_000, at_once=2), is_short=True),
    Abuse(
        "100,000 keys in an object",
        _with_key(b"{" + b",".join(b'"%d":0' % i for i in range(100_000)) + b"}", at_once=1),
    ),
    Abuse(
        "a number of a million digits", _with_key(b'{"model":"a","max_tokens":' + b"9" * 1_000_000 + b"}", at_once=1)
    ),
    Abuse("bytes that are no UTF-8", _with_key(b'{"model":"\xff\xfe"}')),
    Abuse("compressed bodies", flood(_same(lambda v: v.post(b"\x1f\x8b" * 1000, "Content-Encoding: gzip", key=v.key)))),
    # Keys.
    Abuse("unknown keys", flood(_unknown_keys), is_short=True),
    Abuse("keys of 50 KB", flood(_same(lambda v: v.post(b"{}", key="x" * 50_000)))),
    Abuse("two keys", flood(_same(lambda v: v.post(b"{}", "Authorization: Bearer b", key=v.key)))),
    Abuse("guesses at the login", flood(_logins, at_once=4)),
    # Answers.
    Abuse("50 streams that nobody reads", unread(lambda v: v.stream(20_000)), is_short=True),
    Abuse("streams that are left", left(lambda v: v.stream(200), at_once=4)),
    Abuse("half-closed connections", left(lambda v: v.stream(20), half=True, at_once=4), is_short=True),
    Abuse("pipelined requests", endless(lambda _: b"", (_GET + b"\r\n") * 1000), is_short=True),
    Abuse("pipelined requests that nobody reads", unread(lambda _: (_GET + b"\r\n") * 2000, connections=16)),
]


def commit(name: str, victim: Victim, has_begun: Event) -> None:
    """Run the abuse, in a process of its own. Its priority is lower than the client's, which it must not slow down."""
    os.nice(10)
    has_begun.set()
    asyncio.run(next(abuse for abuse in ABUSES if abuse.name == name).act(victim))
