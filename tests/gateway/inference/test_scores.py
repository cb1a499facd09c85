"""What the router's scores come to is in /metrics, and other weights may look on without deciding."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from gateway.resources import open_services
from gateway.settings import ConfigError
from router.complexity import shipped_weights
from router.weights import pack_weights
from tests.support.gateways import Gateway, declare, eventually, make_settings, running_gateway
from tests.support.valkey import ValkeyProcess
from tests.support.workers import WorkerProcess

EASY, HARD = "Thanks!", "Prove that there are infinitely many primes, then write the proof as a Python program."


def counted(gateway: Gateway) -> dict[tuple[str, ...], float]:
    metrics = gateway.services.metrics
    families = [family for each in (metrics._scored, metrics._gains) for family in each.collect()]
    return {
        (sample.name.removeprefix("tiergate_router_"), *sample.labels.values()): sample.value
        for family in families
        for sample in family.samples
    }


async def ask(gateway: Gateway, text: str, *, model: str = "auto") -> Any:
    body = {"model": model, "messages": [{"role": "user", "content": text}], "max_tokens": 2}
    async with gateway.client(await gateway.make_key(tier="pro")) as client:
        reply = await client.post("/chat/completions", json=body)
        assert reply.status_code == 200, reply.text
        return reply.headers


async def test_share_and_expected_quality_can_be_read_from_the_metrics(gateway: Gateway) -> None:
    scores = {text: float((await ask(gateway, text))["x-tiergate-complexity"]) for text in (EASY, HARD)}
    await ask(gateway, HARD, model="small")
    assert counted(gateway) == {
        ("scored_requests_total", "decision", "small", "pro"): 1,
        ("scored_requests_total", "decision", "large", "pro"): 1,
        ("expected_gain_total", "decision", "small", "pro"): pytest.approx(scores[EASY], abs=1e-3),
        ("expected_gain_total", "decision", "large", "pro"): pytest.approx(scores[HARD], abs=1e-3),
    }


async def test_weights_on_trial_score_every_request_and_decide_none(
    tmp_path: Path, fleet_valkey: ValkeyProcess, workers: list[WorkerProcess]
) -> None:
    everything_is_hard = msgspec.structs.replace(
        shipped_weights().content, raw_knots=(0.0, 1.0), probabilities=(1.0, 1.0)
    )
    path = tmp_path / "trial.bin"
    path.write_bytes(pack_weights(everything_is_hard))
    async with running_gateway(make_settings(tmp_path, fleet_valkey.url, router_shadow_weights=path)) as gateway:
        for worker in workers:
            await declare(gateway, worker.model_id, pool=worker.pool)
        await eventually(lambda: all(pool.members for pool in gateway.services.registry.fleet.pools.values()))
        assert (await ask(gateway, EASY))["x-tiergate-pool"] == "small"
        await ask(gateway, EASY, model="small")
        found = counted(gateway)
        assert found["scored_requests_total", "decision", "small", "pro"] == 1
        assert found["scored_requests_total", "shadow", "large", "pro"] == 2
        assert found["expected_gain_total", "shadow", "large", "pro"] == 2
        assert ("scored_requests_total", "decision", "large", "pro") not in found


async def test_a_damaged_file_of_weights_stops_the_start_by_name(tmp_path: Path, valkey: ValkeyProcess) -> None:
    path = tmp_path / "weights.bin"
    path.write_bytes(pack_weights(shipped_weights().content)[:-1])
    for name in ("router_weights", "router_shadow_weights"):
        with pytest.raises(ConfigError, match=f"TIERGATE_{name.upper()}.*truncated"):
            async with open_services(make_settings(tmp_path, valkey.url, **{name: path}), is_draining=lambda: False):
                pass
