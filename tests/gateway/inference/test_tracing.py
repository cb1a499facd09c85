"""Traces, as a collector gets them."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path

from aiohttp import web
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from protocol.accounting import data_event
from tests.support.cli import refusal
from tests.support.gateways import declare, eventually, make_settings, running_gateway
from tests.support.members import be_full, pools, serving_member, stream_of
from tests.support.otlp import attributes, serving_collector
from tests.support.ports import free_port
from tests.support.valkey import ValkeyProcess
from tests.support.workers import WorkerProcess

MARK = "xyzzy"
CHAT = {
    "model": "small",
    "messages": [{"role": "user", "content": f"a {MARK} prompt"}],
    "max_tokens": 4,
    "stop": [MARK],
}
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
ROUTE = "POST /v1/chat/completions"
CHUNK = {"index": 0, "delta": {"content": "x"}, "finish_reason": "stop"}
EVENT = data_event(
    json.dumps({"id": "1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [CHUNK]}).encode()
)


async def test_a_request_is_a_span_with_its_steps_and_its_call_below_it(
    tmp_path: Path, fleet_valkey: ValkeyProcess, workers: list[WorkerProcess]
) -> None:
    async with serving_collector() as collector:
        settings = make_settings(tmp_path, fleet_valkey.url, otlp_endpoint=collector.url)
        async with running_gateway(settings) as gateway:
            await declare(gateway, workers[0].model_id, pool="small")
            await eventually(lambda: gateway.services.registry.fleet.pools["small"].members)
            async with gateway.client(await gateway.make_key(tier="pro")) as client:
                sent = CHAT | {"stream": True, "ignore_eos": True, "temperature": 0.5, "stop": None}
                parent = {"traceparent": f"00-{TRACE}-{PARENT}-01", "tracestate": "vendor=1"}
                reply = await client.post("/chat/completions", json=sent, headers=parent)
                assert reply.status_code == 200
                tenant_id = gateway.services.keyring.known(client.headers["authorization"].encode()).tenant_text  # type: ignore[union-attr]
    [request], [call] = collector.named(ROUTE), collector.named(f"chat {workers[0].model_id}")
    assert collector.services() == {"tiergate-gateway"}
    assert {span.trace_id.hex() for span in collector.spans} == {TRACE}
    assert request.parent_span_id.hex() == PARENT and request.kind == Span.SPAN_KIND_SERVER
    assert call.parent_span_id == request.span_id and call.kind == Span.SPAN_KIND_CLIENT
    assert attributes(request) == {
        "http.request.method": "POST",
        "http.route": "/v1/chat/completions",
        "url.path": "/v1/chat/completions",
        "http.response.status_code": 200,
        "tiergate.request.id": reply.headers["x-request-id"],
        "tiergate.tenant.id": tenant_id,
        "tiergate.tier": "pro",
        "tiergate.pool": "small",
        "tiergate.route.reason": "requested",
        "tiergate.status": "ok",
        "gen_ai.request.model": "small",
    }
    told = attributes(call)
    assert 0 < told.pop("gen_ai.response.time_to_first_chunk") < 60
    assert told.pop("gen_ai.response.model").startswith(workers[0].model_id)
    assert told.pop("gen_ai.usage.input_tokens") > 1 and told.pop("tiergate.worker.id")
    assert told == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "tiergate",
        "gen_ai.request.model": workers[0].model_id,
        "gen_ai.request.max_tokens": 4,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.stream": True,
        "gen_ai.response.finish_reasons": ["length"],
        "gen_ai.usage.output_tokens": 4,
        "gen_ai.usage.cache_read.input_tokens": 0,
        "server.address": "127.0.0.1",
        "server.port": int(workers[0].url.rsplit(":", 1)[1]),
    }
    assert [event.name for event in request.events] == ["authenticated", "admitted"]
    assert [event.name for event in call.events] == ["computing", "first token"]
    for span in (request, call):
        times = [span.start_time_unix_nano, *(each.time_unix_nano for each in span.events), span.end_time_unix_nano]
        assert times == sorted(times)
    assert not any(MARK.encode() in body for body in collector.received)


async def test_each_replica_that_is_asked_is_told_of_its_own_call(tmp_path: Path, valkey: ValkeyProcess) -> None:
    told: list[str] = []
    answer = stream_of(EVENT, b"data: [DONE]\n\n")

    async def note(request: web.Request) -> web.StreamResponse:
        told.append(request.headers["traceparent"])
        return await (be_full if len(told) == 1 else answer)(request)

    async with serving_collector() as collector, serving_member(note) as one, serving_member(note) as other:
        members = [{"url": url, "engine": "openai"} for url in (one, other)]
        settings = make_settings(tmp_path, valkey.url, otlp_endpoint=collector.url, pools=pools(*members))
        async with running_gateway(settings) as gateway, gateway.client(await gateway.make_key()) as client:
            reply = await client.post("/chat/completions", json=CHAT | {"stream": True})
            assert reply.status_code == 200, reply.text
    failed, served = collector.named("chat m")
    assert [each.rsplit("-", 1)[0] for each in told] == [
        f"00-{span.trace_id.hex()}-{span.span_id.hex()}" for span in (failed, served)
    ]
    assert all(int(each.rsplit("-", 1)[1], 16) & 1 for each in told)
    assert attributes(failed)["error.type"] == "busy" and failed.status.code == Status.STATUS_CODE_ERROR
    assert attributes(served)["gen_ai.provider.name"] == "openai" and "error.type" not in attributes(served)
    assert not any(MARK.encode() in body for body in collector.received)


async def test_what_is_refused_tells_its_code_and_quotes_nobody(tmp_path: Path, valkey: ValkeyProcess) -> None:
    async with (
        serving_collector() as collector,
        running_gateway(make_settings(tmp_path, valkey.url, otlp_endpoint=collector.url)) as gateway,
        gateway.client(await gateway.make_key()) as client,
        gateway.client(MARK) as stranger,
    ):
        headers = {"traceparent": f"no-{MARK}", "tracestate": MARK}
        assert (await client.post("/chat/completions", json=CHAT, headers=headers)).status_code == 404
        assert (await client.post("/chat/completions", json={MARK: 1})).status_code == 400
        assert (await stranger.post("/chat/completions", json=CHAT)).status_code == 401
    found = [attributes(span) for span in collector.named(ROUTE)]
    assert [(each["http.response.status_code"], each["error.type"]) for each in found] == [
        (404, "model_not_found"),
        (400, "invalid_request"),
        (401, "invalid_api_key"),
    ]
    assert not any(MARK.encode() in body for body in collector.received)


async def test_only_the_operators_share_is_traced_whatever_a_client_wishes(
    tmp_path: Path, valkey: ValkeyProcess
) -> None:
    async with serving_collector() as collector:
        settings = make_settings(tmp_path, valkey.url, otlp_endpoint=collector.url, trace_ratio=0.0)
        async with running_gateway(settings) as gateway, gateway.client("nobody") as client:
            headers = {"traceparent": f"00-{TRACE}-{PARENT}-01"}
            assert (await client.post("/chat/completions", json=CHAT, headers=headers)).status_code == 401
    assert collector.received == []


async def test_a_collector_that_is_away_holds_up_neither_requests_nor_the_end(
    tmp_path: Path, valkey: ValkeyProcess
) -> None:
    settings = make_settings(tmp_path, valkey.url, otlp_endpoint=f"http://127.0.0.1:{free_port()}")
    async with asyncio.timeout(60):
        async with running_gateway(settings) as gateway, gateway.client("nobody") as client:
            assert (await client.post("/chat/completions", json=CHAT)).status_code == 401


def test_without_an_endpoint_no_exporter_and_no_spans_are_imported() -> None:
    program = """
import asyncio, sys
import gateway.main
from gateway.tracing import open_tracing

async def main():
    async with open_tracing(None, ratio=1.0) as tracing:
        assert tracing is None

asyncio.run(main())
ours = ("opentelemetry.exporter", "opentelemetry.sdk.trace.export", "gateway.tracing.spans")
print([name for name in sys.modules if name.startswith(ours)])
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert ended.stdout.strip() == "[]"


def test_a_share_beyond_all_is_refused_in_one_line() -> None:
    env = {"TIERGATE_KEY_PEPPER": "p" * 16, "TIERGATE_TRACE_RATIO": "2"}
    assert refusal("gateway", env=env).startswith("tiergate gateway: TIERGATE_TRACE_RATIO: ")
