"""`/health`, `/ready` and `/metrics` of the producer and the consumer."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from prometheus_client import CollectorRegistry, Counter
from pydantic import SecretStr

from gateway.metering.rounds import STALLED_S, Rounds
from gateway.metering.status import status_served
from gateway.settings import ConfigError
from tests.support.ports import free_port


@contextmanager
def served(rounds: Rounds, key: str | None = None) -> Iterator[httpx.Client]:
    port, registry = free_port(), CollectorRegistry()
    Counter("tiergate_things", "Things", registry=registry).inc(3)
    secret = SecretStr(key) if key else None
    with (
        status_served("127.0.0.1", port, setting="TIERGATE_X", rounds=rounds, registry=registry, key=secret),
        httpx.Client(base_url=f"http://127.0.0.1:{port}") as client,
    ):
        yield client


def test_ready_follows_the_target_and_health_the_loop() -> None:
    now = 0.0
    rounds = Rounds("Kafka", clock=lambda: now)
    with served(rounds) as client:
        assert client.get("/health").status_code == 200
        assert client.get("/ready").status_code == 503
        rounds.is_target_there = True
        assert client.get("/ready").status_code == 200
        now = STALLED_S + 1
        assert client.get("/health").status_code == 503
        rounds.turn()
        assert client.get("/health").status_code == 200
        assert client.get("/other").status_code == 404


def test_metrics_are_for_this_machine_or_for_the_key() -> None:
    with served(Rounds("Kafka")) as client:
        assert "tiergate_things_total 3.0" in client.get("/metrics").text
        assert client.get("/metrics", headers={"X-Forwarded-For": "10.0.0.1"}).status_code == 403
    with served(Rounds("Kafka"), key="the-metrics-key") as client:
        assert client.get("/metrics").status_code == 401
        assert client.get("/metrics", headers={"Authorization": "Bearer the-metrics-key"}).status_code == 200


def test_a_port_that_is_taken_stops_the_start_with_one_line() -> None:
    port = free_port()
    options: dict[str, Any] = {"setting": "TIERGATE_PRODUCER_PORT", "rounds": Rounds("Kafka"), "key": None}
    options["registry"] = CollectorRegistry()
    with (
        status_served("127.0.0.1", port, **options),
        pytest.raises(ConfigError, match="TIERGATE_PRODUCER_PORT"),
        status_served("127.0.0.1", port, **options),
    ):
        raise AssertionError("it listens twice")
