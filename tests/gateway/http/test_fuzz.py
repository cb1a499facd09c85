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
from tests.support.abused_gateways import AbusedGateway, abused_gateway

TIMEOUT_S = 30.0
TOO_LONG = (
    HealthCheck.too_slow,
    HealthCheck.filter_too_much,
    HealthCheck.data_too_large,
    HealthCheck.large_base_example,
)
# By operation and mode: about 100 requests, and 1,000.
BY_SCHEMA = [2, pytest.param(15, marks=pytest.mark.long)]
RAW = [100, pytest.param(1000, marks=pytest.mark.long)]


@pytest.fixture(scope="module")
def fuzzed() -> Iterator[AbusedGateway]:
    with abused_gateway() as running:
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
    keys = [str(fuzzed.target.key), ADMIN_KEY]
    with requests.Session() as session:
        for found in schema.get_all_operations():
            operation = found.ok()

            @bounded(num_examples)
            @given(operation.as_strategy(generation_mode=mode), st.sampled_from(keys))
            def ask(case: schemathesis.Case, key: str) -> None:
                authorization = {"Authorization": f"Bearer {key}"}
                reply = case.call(origin, session=session, headers=authorization, timeout=TIMEOUT_S)
                check(reply.status_code, reply.content, case.as_curl_command())

            # Where there is nothing to send, nothing can be wrong.
            with contextlib.suppress(Unsatisfiable):
                ask()
    fuzzed.check_all_given_back()


METHODS = st.sampled_from(
    [b"GET", b"POST", b"HEAD", b"OPTIONS", b"DELETE", b"PATCH", b"PUT", b"CONNECT", b"TRACE", b"", b"\xff"]
)
TARGETS = st.sampled_from(
    [
        b"/v1/chat/completions",
        b"/v1/models",
        b"/v1/models/%ff",
        b"/admin/v1/tenants?limit=0",
        b"/dashboard",
        b"*",
        b"",
        b"//",
        b"/%",
    ]
) | st.binary(max_size=30)
NAMES = st.sampled_from(
    [
        b"Content-Length",
        b"Transfer-Encoding",
        b"Connection",
        b"Expect",
        b"Upgrade",
        b"Authorization",
        b"Content-Type",
        b"Content-Encoding",
        b"Host",
        b"X-Forwarded-For",
        b"Origin",
        b"X-Client-Request-Id",
        b"X-Session-Id",
        b"Cookie",
    ]
) | st.binary(max_size=10)
VALUES = st.sampled_from(
    [
        b"0",
        b"3",
        b"-1",
        b"1e3",
        b"chunked",
        b"gzip, chunked",
        b"identity",
        b"close",
        b"keep-alive",
        b"upgrade",
        b"100-continue",
        b"h2c",
        b"Bearer x",
        b"Bearer " + ADMIN_KEY.encode(),
        b"application/json",
        b"tiergate_session=a.b",
        b"\xc3\xa9",
        b"",
    ]
) | st.binary(max_size=20)
ENDS = st.sampled_from([b"\r\n"] * 20 + [b"\n", b"\r", b""])
VERSIONS = st.sampled_from([b"HTTP/1.1"] * 10 + [b"HTTP/1.0", b"HTTP/2.0", b"HTTP/1.", b""])
BODIES = st.sampled_from(
    [
        b"",
        b"{}",
        b"[]",
        b"null",
        b"3\r\nabc\r\n0\r\n\r\n",
        b"0\r\n\r\n",
        b'{"model": "small", "messages": [{"role": "user", "content": "a"}]}',
    ]
) | st.binary(max_size=60)


@st.composite
def nearly_http(draw: st.DrawFn) -> bytes:
    parts = [draw(METHODS), b" ", draw(TARGETS), b" ", draw(VERSIONS), draw(ENDS)]
    for name, value in draw(st.lists(st.tuples(NAMES, VALUES), max_size=6)):
        parts += [name, draw(st.sampled_from([b": "] * 10 + [b":", b" : ", b""])), value, draw(ENDS)]
    return b"".join(parts) + draw(ENDS) + draw(BODIES)


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
    assert status < 500 or status == 503, asked
    if status >= 400 and body:
        assert set(json.loads(body)["error"]) == {"message", "type", "param", "code"}, asked
