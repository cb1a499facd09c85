"""Every query of the dashboards and of the alerts, asked of a real Prometheus that scrapes live processes."""

import asyncio
import json
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest
import yaml
from aiohttp import web
from kafka import KafkaProducer
from prometheus_client import CollectorRegistry, generate_latest

from gateway.settings import GatewaySettings
from tests.support.checkpoints import make_tiny_checkpoint
from tests.support.clickhouse import start_clickhouse, url_at
from tests.support.gateways import WORKER_KEY, Gateway, make_settings, running_gateway
from tests.support.kafka import KafkaBroker, running_kafka
from tests.support.members import be_full, hang_up, serving_member
from tests.support.platform import clean_environment, stop, wait_until
from tests.support.ports import free_port
from tests.support.prometheus import ALERTS, DEPLOY, Prometheus, running_prometheus
from tests.support.running_worker import running_worker
from tests.support.valkey import ValkeyProcess
from tests.worker.server.test_gpu import TwoGpus
from worker.server.gpu import GpuCollector

KEY = "the-metrics-key"
CHAT = {"model": "small", "messages": [{"role": "user", "content": "hello hello hello"}], "max_tokens": 4}
DEADLINE_S = 60
_METRIC = re.compile(r"\b(?:tiergate|process)_\w+\b|\bup\b")
_SELECTOR = re.compile(r"\b((?:tiergate|process)_\w+|up)\{([^}]*)\}")
_MATCHER = re.compile(r"(\w+)\s*(?:=~|!~|!=|=)")
_GROUPING = re.compile(r"\b(?:by|on) \(([^)]*)\)")


class Query(NamedTuple):
    where: str
    expression: str
    legend: str


def panel_queries() -> list[Query]:
    return [
        Query(
            f"{path.stem}: {panel['title']}", target["expr"].replace("$__rate_interval", "1m"), target["legendFormat"]
        )
        for path in sorted((DEPLOY / "grafana" / "dashboards").glob("*.json"))
        for panel in json.loads(path.read_text())["panels"]
        for target in panel.get("targets", ())
    ]


def alert_queries() -> list[Query]:
    groups = yaml.safe_load(ALERTS.read_text())["groups"]
    return [Query(rule["alert"], rule["expr"], "") for group in groups for rule in group["rules"]]


@pytest.fixture
def valkey(tmp_path: Path) -> Iterator[ValkeyProcess]:
    process = ValkeyProcess(tmp_path)
    process.start()
    yield process
    process.stop()


@asynccontextmanager
async def serving_gpus() -> AsyncIterator[str]:
    """Its address: the metrics of a worker's GPUs, of which this machine has none."""
    registry = CollectorRegistry()
    registry.register(GpuCollector(TwoGpus()))

    async def metrics(_request: web.Request) -> web.Response:
        return web.Response(body=generate_latest(registry), content_type="text/plain")

    app = web.Application()
    app.router.add_get("/metrics", metrics)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def make_traffic(gateway: Gateway, worker: str) -> None:
    """Something of everything that a dashboard shows: served, refused by a limit, wrong, failing, cut at the door."""
    host, port = gateway.origin.removeprefix("http://").split(":")
    _, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"no HTTP at all\r\n\r\n")
    await gateway.admin.patch("/tiers/free", json={"requests_per_minute": 1})
    async with gateway.client(await gateway.make_key(tier="free")) as free:
        codes = [(await free.post("/chat/completions", json=CHAT)).status_code for _ in range(2)]
        assert codes == [200, 429]
    async with gateway.client(await gateway.make_key()) as client:
        for changes in ({"stream": True}, {"ignore_eos": True}, {"stream": True, "ignore_eos": True}):
            assert (await client.post("/chat/completions", json=CHAT | changes)).status_code == 200
        assert (await client.post("/chat/completions", json=CHAT | {"model": "large"})).status_code in (502, 503)
        assert (await client.post("/chat/completions", json=CHAT | {"model": "nobody"})).status_code == 404
    async with httpx.AsyncClient(headers={"Authorization": f"Bearer {WORKER_KEY}"}) as at_worker:
        assert (await at_worker.post(f"{worker}/v1/chat/completions", json={"model": "m"})).status_code == 400
    writer.close()


@pytest.mark.long
async def test_every_query_finds_its_metrics_and_labels_in_live_processes(
    tmp_path: Path, valkey: ValkeyProcess
) -> None:
    model = make_tiny_checkpoint(tmp_path / "model", seed=3)
    with running_worker(model, name="m", api_key=WORKER_KEY, metrics_key=KEY) as worker:
        async with (
            serving_gpus() as gpus,
            serving_member(be_full, worker_id="a") as full,
            serving_member(hang_up, worker_id="b") as gone,
            running_gateway(settings(tmp_path, valkey, worker.origin, full, gone)) as gateway,
        ):
            addresses = {
                "tiergate-gateway": [gateway.origin.removeprefix("http://")],
                "tiergate-worker": [worker.origin.removeprefix("http://"), gpus],
            }
            with (
                shipping(tmp_path, gateway.services.settings.data_dir) as shippers,
                running_prometheus(tmp_path, addresses | shippers, key=KEY) as prometheus,
            ):
                await asyncio.to_thread(wait_until, prometheus.are_all_up, deadline_s=DEADLINE_S)
                await make_traffic(gateway, worker.origin)
                for query in panel_queries():
                    await asyncio.to_thread(check_panel, prometheus, query)
                for query in alert_queries():
                    await asyncio.to_thread(check_names, prometheus, query)
                await asyncio.to_thread(check_rules, prometheus)


@contextmanager
def shipping(folder: Path, data_dir: Path) -> Iterator[dict[str, list[str]]]:
    """A producer, Kafka, a consumer and ClickHouse; the addresses of those that are ours."""
    ports = {"producer": free_port(), "consumer": free_port()}
    clickhouse_port = free_port()
    clickhouse = start_clickhouse(folder / "clickhouse", clickhouse_port)
    try:
        with running_kafka(folder / "kafka") as broker:
            variables = {
                "TIERGATE_DATA_DIR": str(data_dir),
                "TIERGATE_KEY_PEPPER": "p" * 16,
                "TIERGATE_METRICS_KEY": KEY,
                "TIERGATE_CLICKHOUSE_URL": url_at(clickhouse_port),
                "TIERGATE_KAFKA_BOOTSTRAP_SERVERS": broker.server,
                "TIERGATE_KAFKA_REPLICATION": "1",
                "TIERGATE_KAFKA_PARTITIONS": "2",
            } | {f"TIERGATE_{name.upper()}_PORT": str(port) for name, port in ports.items()}
            with ExitStack() as stack:
                for name in ports:
                    stack.enter_context(started(folder, name, variables))
                wait_until(lambda: _is_ready(ports["producer"]), deadline_s=DEADLINE_S)
                send_garbage(broker)
                yield {f"tiergate-{name}": [f"127.0.0.1:{port}"] for name, port in ports.items()}
    finally:
        clickhouse.kill()


@contextmanager
def started(folder: Path, command: str, variables: dict[str, str]) -> Iterator[None]:
    with (folder / f"{command}.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "tiergate", command], env=clean_environment() | variables, stdout=log, stderr=log
        )
    try:
        yield
    finally:
        stop(process)


def _is_ready(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/ready").status_code == 200
    except httpx.HTTPError:
        return False


def send_garbage(broker: KafkaBroker) -> None:
    """A dead letter to be."""
    producer = KafkaProducer(bootstrap_servers=broker.server)
    producer.send("tiergate.usage", b"no event").get(timeout=DEADLINE_S)
    producer.close()


def settings(folder: Path, valkey: ValkeyProcess, worker: str, *failing: str) -> GatewaySettings:
    pools = {
        "small": {"model": "m", "context_window": 256, "members": [{"url": worker}]},
        "large": {"model": "l", "context_window": 256, "members": [{"url": url} for url in failing]},
    }
    return make_settings(folder, valkey.url, metrics_key=KEY, pools=pools)


def check_panel(prometheus: Prometheus, query: Query) -> None:
    """It finds something, with the labels that its legend names."""
    wait_until(lambda: prometheus.query(query.expression), deadline_s=DEADLINE_S)
    check_names(prometheus, query)
    wanted = set(re.findall(r"\{\{(\w+)\}\}", query.legend))
    for found in prometheus.query(query.expression):
        assert wanted <= found["metric"].keys(), query


def check_names(prometheus: Prometheus, query: Query) -> None:
    """Every metric is there, with the labels that are matched on it; what is grouped by is a label of one of them."""
    names = set(_METRIC.findall(query.expression))
    assert names, query
    labels = {name: prometheus.labels_of(name) for name in names}
    assert all(labels.values()), (query, labels)
    for name, matchers in _SELECTOR.findall(query.expression):
        assert set(_MATCHER.findall(matchers)) <= labels[name], query
    grouped = {label.strip() for group in _GROUPING.findall(query.expression) for label in group.split(",")}
    assert grouped <= set().union(*labels.values()), query


def check_rules(prometheus: Prometheus) -> None:
    """Prometheus itself evaluates all of them, and finds nothing wrong with their form."""
    wait_until(lambda: all(rule["health"] != "unknown" for rule in prometheus.rules()), deadline_s=DEADLINE_S)
    rules = prometheus.rules()
    assert {rule["name"] for rule in rules} == {query.where for query in alert_queries()}
    assert [rule for rule in rules if rule["health"] != "ok"] == []


def test_each_board_has_an_id_of_its_own_and_asks_the_chosen_prometheus() -> None:
    boards = [json.loads(path.read_text()) for path in (DEPLOY / "grafana" / "dashboards").glob("*.json")]
    assert len({board["uid"] for board in boards}) == len(boards) == 4
    for board in boards:
        assert [variable["name"] for variable in board["templating"]["list"]] == ["datasource"]
        panels = [panel for panel in board["panels"] if panel["type"] != "row"]
        assert all(panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"} for panel in panels)
        assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
