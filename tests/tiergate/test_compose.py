"""The compose file's form: it names only what exists. (Images are not built here.)"""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.settings import GatewaySettings
from worker.settings import WorkerSettings

ROOT = Path(__file__).parents[2]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES: dict[str, Any] = COMPOSE["services"]
OURS = {name: service for name, service in SERVICES.items() if "build" in service}


def test_every_process_of_production_is_there() -> None:
    assert SERVICES.keys() == {
        *("gateway", "consumer", "migrate", "worker-small", "worker-large"),
        *("postgres", "valkey", "clickhouse"),
    }


def test_every_variable_is_a_setting() -> None:
    known = {f"TIERGATE_{name.upper()}" for name in GatewaySettings.model_fields}
    for name, field in WorkerSettings.model_fields.items():
        known |= {f"TIERGATE_WORKER_{name.upper()}", str(field.validation_alias)}
    used = {name for service in OURS.values() for name in service["environment"]}
    assert used <= known


@pytest.mark.parametrize("name", OURS)
def test_what_is_built_has_its_dockerfile_and_what_is_needed_exists(name: str) -> None:
    service = OURS[name]
    assert (ROOT / service["build"]["dockerfile"]).is_file()
    assert service.get("depends_on", {}).keys() <= SERVICES.keys()
    assert {volume.split(":")[0] for volume in service["volumes"] if not volume.startswith("$")} <= COMPOSE[
        "volumes"
    ].keys()


def test_gateway_and_consumer_share_the_outboxes() -> None:
    assert SERVICES["gateway"]["volumes"] == SERVICES["consumer"]["volumes"]
    assert SERVICES["gateway"]["environment"] == SERVICES["consumer"]["environment"]


def test_workers_reserve_a_gpu_and_only_the_gateway_is_published() -> None:
    for name, service in SERVICES.items():
        assert ("deploy" in service) == name.startswith("worker")
        assert ("ports" in service) == (name == "gateway")


def test_every_secret_comes_from_the_environment_and_is_in_the_example() -> None:
    text = (ROOT / "docker-compose.yml").read_text()
    example = (ROOT / "deploy/example.env").read_text()
    required = set(re.findall(r"\$\{(\w+):\?\}", text))
    assert len(required) == 6
    assert all(re.search(rf"^{name}=$", example, re.MULTILINE) for name in required)
    assert set(re.findall(r"\$\{(\w+):[-?]", text)) == set(re.findall(r"^(\w+)=", example, re.MULTILINE))


def test_the_gateways_image_has_no_torch() -> None:
    gateway, worker = ((ROOT / f"deploy/Dockerfile.{name}").read_text() for name in ("gateway", "worker"))
    assert ".[postgres]" in gateway and "worker]" not in gateway
    assert ".[worker]" in worker
