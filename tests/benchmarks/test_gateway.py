"""The benchmark's own instruments: what they count has to be right before a gateway is measured with them."""

from collections.abc import Iterator

import httpx
import msgspec
import pytest

from benchmarks.gateway.load import Load, Target, WrongAnswers, check_right
from benchmarks.gateway.machine import Cores, assign_cores
from benchmarks.gateway.report import Gate, Row
from benchmarks.gateway.servers import Upstreams, running_relay, running_upstreams
from benchmarks.limits import SHAPES
from protocol.accounting import ACCOUNTING_HEADER, ACCOUNTING_PREFIX, TOKENS_PREFIX, Accounting, parse_accounting
from protocol.load import LoadReport
from protocol.responses import ChatCompletion, ChatCompletionChunk

EVERY = assign_cores().every
# Nobody is timed here, so nobody needs a core of its own.
CORES = Cores(EVERY, EVERY, EVERY)


@pytest.fixture(scope="module")
def upstreams() -> Iterator[Upstreams]:
    with running_upstreams(CORES) as running:
        yield running


@pytest.fixture
def load() -> Load:
    return Load(CORES)


@pytest.fixture
def foreign(upstreams: Upstreams) -> Target:
    return Target("foreign", (upstreams.ports["foreign"],))


@pytest.fixture
def own(upstreams: Upstreams) -> Target:
    return Target("own", (upstreams.ports["own"],))


def post(target: Target, **fields: object) -> httpx.Response:
    body = msgspec.json.decode(target.request().partition(b"\r\n\r\n")[2])
    return httpx.post(f"http://127.0.0.1:{target.ports[0]}/v1/chat/completions", json=body | fields, timeout=30)


def data_lines(content: bytes) -> list[bytes]:
    return [line.removeprefix(b"data: ") for line in content.split(b"\n") if line.startswith(b"data: ")]


def test_a_closed_loop_counts_every_answer(load: Load, foreign: Target) -> None:
    seen = load.closed(foreign, connections=8, seconds=1)
    assert seen.num_wrong == 0
    assert seen.requests > 100
    # Those under way at the end are answered, and in no rate.
    assert seen.requests <= seen.num_ok <= seen.requests + 8
    assert seen.requests_per_s == pytest.approx(seen.requests / seen.seconds, rel=0.01)
    assert seen.bytes > 370 * seen.num_ok
    assert 0 < seen.p50_ms <= (seen.status["200"].p99_ms or 0) <= (seen.status["200"].max_ms or 0)


def test_every_chunk_of_a_stream_is_timed_once(load: Load, foreign: Target) -> None:
    seen = load.streams(foreign, count=20, ramp_s=0.2, pause_ms=20, hold_s=0.3)
    assert seen.num_wrong == 0
    assert seen.num_ok == seen.ttft.count == 20
    assert seen.chunks == 20 * 25
    assert seen.transit.ramp.count + seen.transit.after.count == seen.chunks
    assert 0 < (seen.transit.after.p50_ms or 0) < 1000
    assert 0.15 < seen.opened_s < seen.seconds


def test_a_flood_brings_whole_streams(load: Load, own: Target) -> None:
    seen = load.flood(own, connections=4, seconds=0.5, chunks_each=50)
    assert seen.num_wrong == 0
    assert seen.num_ok > 4
    assert seen.chunks == 50 * seen.num_ok


def test_an_open_loop_keeps_its_rate(load: Load, foreign: Target) -> None:
    seen = load.open_loop(foreign, rate=200, connections=50, seconds=1)
    assert (seen.num_wrong, seen.no_connection) == (0, 0)
    # The last ones may still be under way when the second is over.
    assert 190 <= seen.num_ok <= 200


def test_a_burst_sends_one_request_on_each_connection(load: Load, own: Target) -> None:
    seen = load.burst(own, connections=100, chunks_each=3)
    assert (seen.num_ok, seen.num_wrong, seen.chunks) == (100, 0, 300)


def test_streams_of_another_length_are_wrong(load: Load, foreign: Target) -> None:
    # The last of two requests' brackets is not read: the upstream sends 3 chunks where 50 are expected.
    other = Target("other", foreign.ports, model="[3 chunks, 0 ms]")
    seen = load.flood(other, connections=1, seconds=0.2, chunks_each=50)
    assert seen.num_ok == 0
    assert seen.failed.broken == seen.num_wrong > 0


def test_nobody_there_is_told(load: Load) -> None:
    seen = load.closed(Target("nobody", (1,)), connections=3, seconds=0.2)
    assert (seen.failed.connect, seen.num_answers) == (3, 0)


def test_whole_answers_have_370_bytes(foreign: Target, own: Target) -> None:
    for target in (foreign, own):
        answer = post(target)
        assert len(answer.content) == 370
        assert msgspec.json.decode(answer.content, type=ChatCompletion).usage.completion_tokens == 16
    assert ACCOUNTING_HEADER not in post(foreign).headers
    assert msgspec.json.decode(post(own).headers[ACCOUNTING_HEADER], type=Accounting).completion_tokens == 16


def test_a_stream_has_the_shape_of_openai(foreign: Target) -> None:
    content = post(foreign, stream=True, stream_options={"include_usage": True}).content
    *events, done = data_lines(content)
    chunks = [msgspec.json.decode(event, type=ChatCompletionChunk) for event in events]
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices] == [None, "length"]
    assert [chunk.usage.completion_tokens for chunk in chunks if chunk.usage] == [1]
    assert done == b"[DONE]"
    assert TOKENS_PREFIX not in content


def test_our_workers_dialect_tells_tokens_and_load(own: Target) -> None:
    lines = post(own, stream=True).content.split(b"\n")
    assert any(line.startswith(TOKENS_PREFIX) for line in lines)
    (figures,) = [parse_accounting(line) for line in lines if line.startswith(ACCOUNTING_PREFIX)]
    assert figures.completion_tokens == 1
    origin = f"http://127.0.0.1:{own.ports[0]}"
    assert msgspec.json.decode(httpx.get(f"{origin}/load").content, type=LoadReport).worker_id == figures.worker_id
    assert httpx.get(f"{origin}/tokenizer").status_code == 404


def test_the_bare_relay_passes_whole_answers_and_streams(load: Load, upstreams: Upstreams) -> None:
    with running_relay(upstreams.ports["foreign"], CORES) as relay:
        target = Target("relay", (relay.port,))
        assert len(post(target).content) == 370
        seen = load.streams(target, count=5, ramp_s=0, pause_ms=10, hold_s=0.1)
    assert (seen.num_ok, seen.num_wrong, seen.chunks) == (5, 0, 50)


def test_wrong_answers_are_no_rate(load: Load, foreign: Target) -> None:
    other = Target("other", foreign.ports, model="[3 chunks, 0 ms]")
    with pytest.raises(WrongAnswers, match="other"):
        check_right(other, load.flood(other, connections=1, seconds=0.1, chunks_each=50))


def test_each_burst_meets_one_limit_first() -> None:
    assert {shape.binds: shape.max_passed for shape in SHAPES} == {"requests": 100, "tokens": 50, "budget": 50}


def test_a_figure_that_is_missing_passes_no_gate() -> None:
    row = Row(benchmark="b", unit="ms", value=None, gate=Gate("<=", 10))
    assert row.passed is False
    assert '"passed": false' in row.as_json()


def test_a_gate_on_the_ratio_does_not_look_at_the_value() -> None:
    gate = Gate(">=", 0.5, "ratio")
    assert Row(benchmark="b", unit="requests/s", value=1000, ratio=0.4, gate=gate).passed is False
    assert Row(benchmark="b", unit="requests/s", value=0.1, ratio=0.6, gate=gate).passed is True
    assert Row(benchmark="b", unit="requests/s", value=1).passed is None
