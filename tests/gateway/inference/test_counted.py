"""What a gateway did is on its `/metrics`: answered, refused by whom and why, and what waits."""

import asyncio
from pathlib import Path

import httpx
from prometheus_client.parser import text_string_to_metric_families

from tests.support.gateways import Gateway, eventually, make_settings, running_gateway
from tests.support.members import be_full, hang_up, pools, serving_member
from tests.support.valkey import ValkeyProcess
from tests.support.workers import WorkerProcess

CHAT = {"model": "small", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}


async def scraped(gateway: Gateway, name: str) -> dict[tuple[str, ...], float]:
    """Samples by the values of their labels, in the order of the labels' names."""
    async with httpx.AsyncClient(timeout=30) as client:
        text = (await client.get(f"{gateway.origin}/metrics")).raise_for_status().text
    return {
        tuple(value for _, value in sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == name
    }


async def test_a_served_request_is_counted_by_pool_model_and_tier(
    gateway: Gateway, workers: list[WorkerProcess]
) -> None:
    by = (workers[0].model_id, "small", "pro")
    async with gateway.client(await gateway.make_key(tier="pro")) as client:
        for stream in (True, False):
            reply = await client.post("/chat/completions", json=CHAT | {"stream": stream, "ignore_eos": True})
            assert reply.status_code == 200, reply.text
    assert (await scraped(gateway, "tiergate_requests_total"))[("200", *by)] == 2
    assert (await scraped(gateway, "tiergate_tokens_total"))[("completion", *by)] == 8
    for name in ("time_to_first_token", "time_per_output_token", "queue", "request"):
        assert (await scraped(gateway, f"tiergate_{name}_seconds_count"))[by] == 2
    assert sum((await scraped(gateway, "tiergate_top_tenant_tokens")).values()) > 8
    assert (await scraped(gateway, "tiergate_outbox_waiting_events"))[()] >= 2
    assert (await scraped(gateway, "tiergate_pool_requests")).keys() >= {("small", "running"), ("small", "waiting")}


async def test_a_refused_request_is_counted_by_its_error_and_tier(gateway: Gateway) -> None:
    async with gateway.client(await gateway.make_key(tier="free")) as client:
        assert (await client.post("/chat/completions", json=CHAT | {"model": "nobody"})).status_code == 404
        assert (await client.post("/chat/completions", json=CHAT | {"n": "three"})).status_code == 400
    errors = await scraped(gateway, "tiergate_request_errors_total")
    assert errors[("404", "model_not_found", "free")] == 1
    assert errors[("400", "invalid_request", "free")] == 1


async def test_what_the_front_door_refuses_and_all_other_requests_are_counted(gateway: Gateway) -> None:
    host, port = gateway.origin.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"no HTTP at all\r\n\r\n")
    assert b" 400 " in await reader.readline()
    writer.close()
    assert (await gateway.admin.get("/tenants")).status_code == 200
    assert (await gateway.admin.get(f"{gateway.origin}/wp-login.php")).status_code == 404
    assert (await scraped(gateway, "tiergate_front_door_refusals_total"))[("invalid_http",)] == 1
    control = await scraped(gateway, "tiergate_control_requests_total")
    assert control[("admin", "200")] >= 1 and control[("other", "404")] == 1
    assert (await scraped(gateway, "tiergate_connections"))[()] >= 1


async def test_a_failing_replica_is_counted_by_what_it_did(tmp_path: Path, valkey: ValkeyProcess) -> None:
    async with serving_member(be_full, worker_id="a") as full, serving_member(hang_up, worker_id="b") as gone:
        settings = make_settings(tmp_path, valkey.url, pools=pools({"url": full}, {"url": gone}))
        async with running_gateway(settings) as gateway:
            await eventually(lambda: gateway.services.registry.fleet.pools["small"].members)
            async with gateway.client(await gateway.make_key()) as client:
                assert (await client.post("/chat/completions", json=CHAT)).status_code in (502, 503)
            failures = await scraped(gateway, "tiergate_upstream_failures_total")
            assert failures[("small", "busy")] >= 1 and failures[("small", "unreachable")] >= 1
            usage = await scraped(gateway, "tiergate_usage_events_total")
            assert usage[("m", "small", "error", "enterprise")] == 1
