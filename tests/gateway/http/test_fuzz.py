"""Requests that nobody thought of: by the OpenAPI document, right and wrong, and as bytes that are nearly HTTP.

Each is answered below 500, or by an honest 503, in OpenAI's shape; the log holds no traceback and nothing grows.
"""

import contextlib
import json
import socket
from collections.abc import Iterator

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode

from benchmarks.gateway.servers import ADMIN_KEY
from gateway.metering.store import UsageStore
from tests.support.abused_gateways import AbusedGateway, abused_gateway
from tests.support.clickhouse import any_clickhouse, own_database

TIMEOUT_S = 30.0
TOO_LONG = (
    HealthCheck.too_slow,
    HealthCheck.filter_too_much,
    HealthCheck.data_too_large,
    HealthCheck.large_base_example,
)
HONEST = (b"the tokenizer of", b'"saturated"')
"""503s: the upstream is a foreign one, which has no tokenizer; and this machine may be busy."""
# By operation and mode: about 100 requests, and 1,000.
BY_SCHEMA = [2, pytest.param(15, marks=pytest.mark.long)]
RAW = [100, pytest.param(1000, marks=pytest.mark.long)]


@pytest.fixture(scope="module")
def fuzzed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AbusedGateway]:
    """With all that routes may need, so that they do not answer that it is missing."""
    with (
        any_clickhouse(tmp_path_factory.mktemp("clickhouse")) as server,
        own_database(server) as url,
        contextlib.closing(UsageStore(url)) as store,
    ):
        store.prepare()
        with abused_gateway(TIERGATE_CLICKHOUSE_URL=url) as running:
            yield running


def bounded(num_examples: int) -> settings:
    # No shrinking: the first failure tells its request, and a real server is no pure function.
    return settings(
        max_examples=num_examples,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(TOO_LONG),
    )


@pytest.mark.timeout(900)
@pytest.mark.parametrize("num_examples", BY_SCHEMA)
@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE], ids=["right", "wrong"])
def test_no_request_by_the_document_is_too_much(fuzzed: AbusedGateway, mode: GenerationMode, num_examples: int) -> None:
    origin = fuzzed.gateway.origin
    schema = schemathesis.openapi.from_dict(requests.get(f"{origin}/openapi.json", timeout=TIMEOUT_S).json())
    keys = {False: str(fuzzed.target.key), True: ADMIN_KEY}
    with requests.Session() as session:
        for found in schema.get_all_operations():
            operation = found.ok()

            @bounded(num_examples)
            @given(operation.as_strategy(generation_mode=mode), st.sampled_from([True, True, True, False]))
            def ask(case: schemathesis.Case, has_right_key: bool) -> None:
                key = keys[case.path.startswith("/admin") == has_right_key]
                authorization = {"Authorization": f"Bearer {key}"}
                reply = case.call(origin, session=session, headers=authorization, timeout=TIMEOUT_S)
                check(reply.status_code, reply.content, case.as_curl_command())

            # Where there is nothing to send, nothing can be wrong.
            with contextlib.suppress(Unsatisfiable):
                ask()
    fuzzed.check_all_given_back()


def mostly(good: list[bytes], bad: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    """So that one request in two or three is right in all of its parts, and reaches a route."""
    return st.integers(0, 19).flatmap(lambda drawn: bad if drawn == 0 else st.sampled_from(good))


METHODS = mostly(
    [b"GET", b"POST", b"HEAD", b"OPTIONS", b"DELETE", b"PATCH", b"PUT"], st.sampled_from([b"", b"CONNECT", b"\xff"])
)
TARGETS = mostly(
    [
        b"/v1/chat/completions",
        b"/v1/embeddings",
        b"/v1/tokenize",
        b"/v1/models",
        b"/v1/models/%ff",
        b"/admin/v1/tenants?limit=0",
        b"/admin/v1/tiers/%E2%80%AE",
        b"/dashboard?range=%ff&tenant=%00",
        b"/dashboard/login",
        b"//",
        b"*",
    ],
    st.binary(max_size=30),
)
FIELDS = mostly(
    [
        b"Authorization: Bearer " + ADMIN_KEY.encode(),
        b"Authorization: Bearer x",
        b"Authorization: \xc3\xa9",
        b"Connection: close",
        b"Connection: keep-alive, upgrade",
        b"Upgrade: h2c",
        b"Expect: 100-continue",
        b"Content-Type: application/json",
        b"Content-Type: text/plain",
        b"Content-Encoding: gzip",
        b"Content-Encoding: identity",
        b"Content-Length: 2",
        b"Transfer-Encoding: chunked",
        b"Host: evil.example",
        b"Origin: null",
        b"X-Forwarded-For: 1.2.3.4, \xff",
        b"X-Client-Request-Id: \xe9",
        b"X-Session-Id: a",
        b"Cookie: tiergate_session=a.b; tiergate_session=\xff",
    ],
    st.sampled_from([b"Content-Length: -1", b"Transfer-Encoding: gzip", b"X : a", b" folded", b""])
    | st.binary(max_size=30),
)
BODIES = mostly(
    [
        b"",
        b"{}",
        b"[]",
        b"3\r\nabc\r\n0\r\n\r\n",
        b"2\r\n{}\r\n0\r\nA: b\r\n\r\n",
        b"key=a",
        b'{"model": "small", "messages": []}',
    ],
    st.binary(max_size=60),
)
LINE_ENDS = mostly([b"\r\n"], st.sampled_from([b"\n", b"\r", b"", b"\r\n\r\n"]))


@st.composite
def nearly_http(draw: st.DrawFn) -> bytes:
    version = draw(mostly([b"HTTP/1.1", b"HTTP/1.0"], st.sampled_from([b"HTTP/2.0", b"HTTP/1.", b""])))
    parts = [draw(METHODS), b" ", draw(TARGETS), b" ", version, draw(LINE_ENDS)]
    for field in draw(st.lists(FIELDS, max_size=6)):
        parts += [field, b"\r\n"]
    return b"".join(parts) + draw(LINE_ENDS) + draw(BODIES)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("num_examples", RAW)
def test_no_bytes_are_too_much(fuzzed: AbusedGateway, num_examples: int) -> None:
    @bounded(num_examples)
    @given(st.lists(nearly_http() | st.binary(max_size=200), min_size=1, max_size=3).map(b"".join))
    def send(sent: bytes) -> None:
        received = exchange(fuzzed.port, sent)
        if received:
            assert received.startswith(b"HTTP/1.1 "), received[:200]
            check(int(received[9:12]), b"", repr(sent))

    send()
    fuzzed.check_all_given_back()


def exchange(port: int, sent: bytes) -> bytes:
    """What is answered before our patience ends: half a request gets none for long."""
    address = ("127.0.0.1", port)
    with (
        contextlib.suppress(ConnectionError, TimeoutError),
        socket.create_connection(address, timeout=TIMEOUT_S) as connection,
    ):
        connection.sendall(sent)
        connection.settimeout(0.2)
        return connection.recv(65536)
    return b""


def check(status: int, body: bytes, asked: str) -> None:
    assert status < 500 or (status == 503 and (not body or any(reason in body for reason in HONEST))), (asked, body)
    if status >= 400 and body:
        assert set(json.loads(body)["error"]) == {"message", "type", "param", "code"}, asked
