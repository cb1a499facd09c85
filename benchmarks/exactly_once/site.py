"""The site: two machines with a gateway and a producer each, a broker, two consumers, and ClickHouse behind a proxy."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import httpx
from kafka import KafkaConsumer
from kafka.structs import TopicPartition

from benchmarks.exactly_once.member import answer
from gateway.metering.folders import list_folders
from tests.support.clickhouse import PASSWORD, start_clickhouse
from tests.support.freezing_proxy import FreezingProxy, freezing_proxy
from tests.support.gateways import ADMIN_KEY, copy_database
from tests.support.kafka import KafkaBroker
from tests.support.members import serving_member
from tests.support.platform import clean_environment
from tests.support.ports import free_port
from tests.support.valkey import ValkeyProcess

NUM_TENANTS = 7
PROMPT_NANOUSD, COMPLETION_NANOUSD = 100, 400
TOPIC, GROUP = "tiergate.usage", "tiergate-consumer"
DEADLINE_S = 240.0
_POOL = """
[pools.small]
model = "m"
context_window = 4096
members = [{{ url = "{url}", engine = "openai", model = "m" }}]
"""
_NO_LIMITS = (
    *("requests_per_minute", "tokens_per_minute", "concurrency", "tokens_per_day", "budget_nanousd_per_month"),
    *("context_tokens",),
)


class Service:
    """A `tiergate` command that may be killed, frozen and started again."""

    def __init__(self, name: str, folder: Path, variables: Mapping[str, str], *arguments: str) -> None:
        self.name = name
        self._command = [sys.executable, "-m", "tiergate", *arguments]
        self._environment = clean_environment() | dict(variables)
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    async def start(self) -> None:
        self._spawn()

    async def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            await asyncio.to_thread(self._process.wait)

    def freeze(self) -> None:
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    async def stop(self) -> None:
        self._signal(signal.SIGTERM)
        if self._process is not None:
            await asyncio.to_thread(self._process.wait, 60)

    def _spawn(self) -> None:
        with (self._folder / f"{self.name}.log").open("ab") as log:
            self._process = subprocess.Popen(
                self._command, env=self._environment, cwd=self._folder, stdout=log, stderr=log
            )

    def _signal(self, number: int) -> None:
        if self._process is not None and self._process.poll() is None:
            os.kill(self._process.pid, number)


class Broker:
    """The Kafka broker, with the interface of a service."""

    name = "broker"

    def __init__(self, broker: KafkaBroker) -> None:
        self._broker = broker
        self.freeze, self.thaw = broker.freeze, broker.thaw

    async def start(self) -> None:
        await asyncio.to_thread(self._broker.start)

    async def kill(self) -> None:
        await asyncio.to_thread(self._broker.kill)


@dataclass(frozen=True)
class Site:
    folder: Path
    origins: tuple[str, ...]
    keys: Mapping[str, str]
    """Tenant id -> API key."""
    services: Mapping[str, Service | Broker]
    proxy: FreezingProxy
    clickhouse_url: str
    """The direct URL, which bypasses the proxy."""
    database_url: str
    kafka_server: str
    data_dirs: tuple[Path, ...]

    async def settle(self) -> None:
        """Stop the gateways, and wait until all closed events have left the outboxes and the topic.

        Raises TimeoutError.
        """
        for name, service in self.services.items():
            if name.startswith("gateway"):
                assert isinstance(service, Service)
                await service.stop()
        async with asyncio.timeout(DEADLINE_S):
            while any(list_folders(path) for path in self.data_dirs):  # noqa: ASYNC110
                await asyncio.sleep(0.2)
            while not await asyncio.to_thread(self._is_consumed):  # noqa: ASYNC110
                await asyncio.sleep(0.5)

    def _is_consumed(self) -> bool:
        consumer = KafkaConsumer(
            bootstrap_servers=self.kafka_server, group_id=GROUP, enable_auto_commit=False, metrics_enabled=False
        )
        try:
            parts = [TopicPartition(TOPIC, number) for number in consumer.partitions_for_topic(TOPIC) or ()]
            ends = consumer.end_offsets(parts)
            return all((consumer.committed(part) or 0) == ends[part] for part in parts)
        finally:
            consumer.close()


@asynccontextmanager
async def open_site(folder: Path) -> AsyncIterator[Site]:
    async with AsyncExitStack() as stack:
        valkey = ValkeyProcess(folder)
        valkey.start()
        stack.callback(valkey.stop)
        clickhouse = await asyncio.to_thread(start_clickhouse, folder / "clickhouse")
        stack.callback(clickhouse.kill)
        proxy = await stack.enter_async_context(freezing_proxy(clickhouse.port))
        broker = KafkaBroker(folder / "kafka")
        await asyncio.to_thread(broker.start)
        stack.callback(broker.kill)
        member_url = await stack.enter_async_context(serving_member(answer))
        database = folder / "tiergate.db"
        await asyncio.to_thread(copy_database, database)
        (folder / "tiergate.toml").write_text(_POOL.format(url=member_url))
        common = {
            "TIERGATE_KEY_PEPPER": "p" * 16,
            "TIERGATE_DATABASE_URL": f"sqlite+aiosqlite:///{database}",
            "TIERGATE_REDIS_URL": valkey.url,
            "TIERGATE_BOOTSTRAP_ADMIN_KEY": ADMIN_KEY,
            "TIERGATE_REDIS_DEADLINE_MS": "5000",
            "TIERGATE_CLICKHOUSE_URL": f"http://tiergate:{PASSWORD}@127.0.0.1:{proxy.port}",
            "TIERGATE_KAFKA_BOOTSTRAP_SERVERS": broker.server,
            "TIERGATE_KAFKA_REPLICATION": "1",
            "TIERGATE_KAFKA_PARTITIONS": "6",
            "TIERGATE_OUTBOX_MIN_FREE_BYTES": "0",
            "PYTHONPATH": str(Path(__file__).parents[2]),
        }
        services: dict[str, Service | Broker] = {"broker": Broker(broker)}
        origins, data_dirs = [], []
        for machine in range(2):
            data_dir, port = folder / f"machine-{machine}", free_port()
            variables = common | {"TIERGATE_DATA_DIR": str(data_dir), "TIERGATE_PORT": str(port)}
            for command in ("gateway", "producer"):
                name = f"{command}-{machine}"
                services[name] = Service(name, folder, variables, command)
            name = f"consumer-{machine}"
            services[name] = Service(name, folder, variables, "consumer")
            origins.append(f"http://127.0.0.1:{port}")
            data_dirs.append(data_dir)
        for service in services.values():
            if isinstance(service, Service):
                stack.push_async_callback(service.kill)
        # The second gateway reads at its start the changes made through the first one.
        await services["gateway-0"].start()
        await _until_ready(origins[0])
        keys = await _tenants(origins[0])
        for name, service in services.items():
            if name not in ("gateway-0", "broker"):
                await service.start()
        await _until_ready(origins[1])
        urls = clickhouse.url, common["TIERGATE_DATABASE_URL"], broker.server
        yield Site(folder, tuple(origins), keys, services, proxy, *urls, tuple(data_dirs))


async def _tenants(origin: str) -> dict[str, str]:
    """Create tenants without limits, and a price; returns tenant id -> API key."""
    headers = {"Authorization": f"Bearer {ADMIN_KEY}"}
    async with httpx.AsyncClient(base_url=f"{origin}/admin/v1", headers=headers, timeout=30) as admin:
        (await admin.patch("/tiers/enterprise", json=dict.fromkeys(_NO_LIMITS))).raise_for_status()
        price = {"model_id": "m", "prompt_nanousd": PROMPT_NANOUSD, "completion_nanousd": COMPLETION_NANOUSD}
        (await admin.post("/prices", json=price)).raise_for_status()
        keys = {}
        for number in range(NUM_TENANTS):
            tenant = await admin.post("/tenants", json={"name": f"tenant-{number}", "tier": "enterprise"})
            body = {"tenant_id": tenant.json()["id"], "name": "k", "scopes": ["inference"]}
            keys[tenant.json()["id"]] = str((await admin.post("/keys", json=body)).json()["key"])
    return keys


async def _until_ready(origin: str) -> None:
    deadline = time.monotonic() + 90
    async with httpx.AsyncClient(timeout=2) as client:
        while time.monotonic() < deadline:
            with suppress(httpx.HTTPError):
                if (await client.get(f"{origin}/ready")).status_code == 200:
                    return
            await asyncio.sleep(0.1)
    raise TimeoutError(f"{origin} does not become ready")
