"""The compose file's form: it names only what exists. (Images are not built here.)"""

import re
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from gateway.settings import GatewaySettings
from tests.support.prometheus import DEPLOY
from tiergate.main import make_app
from worker.settings import WorkerSettings

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docker-compose.yml").read_text()
COMPOSE: dict[str, Any] = yaml.safe_load(TEXT)
SERVICES: dict[str, Any] = COMPOSE["services"]
OURS = {name: service for name, service in SERVICES.items() if "build" in service}
ON_THE_GATEWAYS_MACHINE = ("gateway", "producer")
_KEYS = {
    *("build", "image", "restart", "environment", "command", "ports", "volumes", "stop_grace_period", "depends_on"),
    *("healthcheck", "deploy", "shm_size", "ulimits", "secrets"),
}
_CONDITIONS = {"service_healthy", "service_completed_successfully", "service_started"}


def test_every_process_of_production_is_there() -> None:
    assert SERVICES.keys() == {
        *("gateway", "producer", "consumer", "migrate", "worker-small", "worker-large"),
        *("postgres", "valkey", "kafka", "clickhouse", "prometheus", "grafana"),
    }


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_has_the_form_that_compose_reads(name: str) -> None:
    service = SERVICES[name]
    assert service.keys() <= _KEYS
    assert all(isinstance(value, str) for value in service.get("environment", {}).values())
    assert (
        service["healthcheck"].keys() <= {"test", "interval", "timeout", "retries", "start_period", "disable"}
        if ("healthcheck" in service)
        else "build" in service
    )
    for needed, how in service.get("depends_on", {}).items():
        assert needed in SERVICES and how["condition"] in _CONDITIONS
        if how["condition"] == "service_healthy":
            assert "healthcheck" in SERVICES[needed]
    for volume in service.get("volumes", ()):
        source = re.sub(r"\$\{[^}]*\}", "", volume).split(":")[0]
        assert not source or source in COMPOSE["volumes"] or (source.startswith("./") and (ROOT / source).exists())
    assert set(service.get("secrets", ())) <= COMPOSE["secrets"].keys()


def test_every_variable_is_a_setting() -> None:
    known = {f"TIERGATE_{name.upper()}" for name in GatewaySettings.model_fields} | {"TIERGATE_LOG_FORMAT"}
    for name, field in WorkerSettings.model_fields.items():
        known |= {f"TIERGATE_WORKER_{name.upper()}", str(field.validation_alias)}
    used = {name for service in OURS.values() for name in service["environment"]}
    assert used <= known


@pytest.mark.parametrize("name", ON_THE_GATEWAYS_MACHINE)
def test_the_gateways_settings_are_taken(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable, value in SERVICES[name]["environment"].items():
        monkeypatch.setenv(variable, re.sub(r"\$\{[^}]*\}", "a-secret-of-24-characters", value))
    settings = GatewaySettings()
    assert (settings.producer_port, settings.consumer_port, settings.port) == (9101, 9102, 8080)


@pytest.mark.parametrize("name", OURS)
def test_what_is_built_has_its_dockerfile_and_runs_a_command_that_exists(name: str) -> None:
    service = OURS[name]
    dockerfile = (ROOT / service["build"]["dockerfile"]).read_text()
    assert 'ENTRYPOINT ["tiergate"]' in dockerfile
    commands = typer.main.get_command(make_app()).commands  # type: ignore[attr-defined]
    options = {name for each in commands[service["command"][0]].params for name in each.opts}
    assert {word for word in service["command"][1:] if word.startswith("--")} <= options


def test_the_producer_shares_the_gateways_outboxes_and_all_have_one_configuration() -> None:
    assert set(SERVICES["gateway"]["volumes"]) >= set(SERVICES["producer"]["volumes"]) > set()
    # Gateways and workers have one store of adapters.
    assert all(
        "artifacts:/artifacts" in SERVICES[name]["volumes"] for name in ("gateway", "worker-small", "worker-large")
    )
    environments = [SERVICES[name]["environment"] for name in ("gateway", "producer", "consumer", "migrate")]
    assert all(environment == environments[0] for environment in environments)


def test_workers_reserve_a_gpu_and_only_what_people_open_is_published() -> None:
    for name, service in SERVICES.items():
        assert ("deploy" in service) == name.startswith("worker")
        assert ("ports" in service) == (name in ("gateway", "grafana"))


def test_every_secret_comes_from_the_environment_and_is_in_the_example() -> None:
    example = (ROOT / "deploy/example.env").read_text()
    required = set(re.findall(r"\$\{(\w+):\?\}", TEXT))
    assert len(required) == 9
    assert all(re.search(rf"^{name}=$", example, re.MULTILINE) for name in required)
    assert set(re.findall(r"\$\{(\w+):[-?]", TEXT)) == set(re.findall(r"^(\w+)=", example, re.MULTILINE))
    assert {secret["environment"] for secret in COMPOSE["secrets"].values()} <= required


def test_ports_agree() -> None:
    """Where each process listens, is probed, published and scraped."""
    ports = {
        "gateway": SERVICES["gateway"]["environment"]["TIERGATE_PORT"],
        "producer": SERVICES["producer"]["environment"]["TIERGATE_PRODUCER_PORT"],
        "consumer": SERVICES["consumer"]["environment"]["TIERGATE_CONSUMER_PORT"],
        "worker-small": SERVICES["worker-small"]["environment"]["TIERGATE_WORKER_PORT"],
        "worker-large": SERVICES["worker-large"]["environment"]["TIERGATE_WORKER_PORT"],
    }
    assert SERVICES["gateway"]["ports"][0].endswith(f":{ports['gateway']}")
    for name in ("producer", "consumer"):
        assert f"127.0.0.1:{ports[name]}/health" in SERVICES[name]["healthcheck"]["test"][-1]
    for name in ("gateway", "worker"):
        dockerfile = (DEPLOY / f"Dockerfile.{name}").read_text()
        port = ports[name if name == "gateway" else "worker-small"]
        assert f"EXPOSE {port}\n" in dockerfile and f"127.0.0.1:{port}/health" in dockerfile
    scraped = {
        name: str(found["port"])
        for job in yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())["scrape_configs"]
        for found in job["dns_sd_configs"]
        for name in found["names"]
    }
    assert scraped == ports
    servers = SERVICES["gateway"]["environment"]["TIERGATE_KAFKA_BOOTSTRAP_SERVERS"]
    assert SERVICES["kafka"]["environment"]["KAFKA_ADVERTISED_LISTENERS"] == f"CLIENT://{servers}"


def test_grafana_finds_its_dashboards_and_its_prometheus() -> None:
    provisioning = DEPLOY / "grafana" / "provisioning"
    [provider] = yaml.safe_load((provisioning / "dashboards" / "tiergate.yml").read_text())["providers"]
    [source] = yaml.safe_load((provisioning / "datasources" / "prometheus.yml").read_text())["datasources"]
    assert f"./deploy/grafana/dashboards:{provider['options']['path']}:ro" in SERVICES["grafana"]["volumes"]
    assert source["url"] == "http://prometheus:9090"


def test_the_gateways_image_has_no_torch() -> None:
    gateway, worker = ((DEPLOY / f"Dockerfile.{name}").read_text() for name in ("gateway", "worker"))
    assert ".[postgres,kafka,otel]" in gateway and "worker]" not in gateway
    assert ".[worker]" in worker
