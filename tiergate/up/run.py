"""`tiergate up`: the order in which everything is started."""

import asyncio
import os
import signal
import time
from pathlib import Path

import msgspec

from tiergate.commands.settings import gateway_settings
from tiergate.failure import Failure
from tiergate.up.checkpoints import Checkpoint, choose_checkpoints
from tiergate.up.console import Console
from tiergate.up.data_dir import owned
from tiergate.up.plan import Plan, Ports, make_plan
from tiergate.up.ports import LOOPBACK, check_free, free_ports
from tiergate.up.ready import make_ready, ready_block, write_ready
from tiergate.up.secrets import KEYS_FILE, Secrets, load_secrets, save_secrets
from tiergate.up.service import Crashed, Service
from tiergate.up.step import run_step
from tiergate.up.supervisor import Supervisor
from tiergate.up.valkey import server_binary, write_config


class Options(msgspec.Struct, kw_only=True, frozen=True):
    data_dir: Path
    port: int
    small: Path | None = None
    large: Path | None = None
    json_ready: Path | None = None


def run(options: Options) -> int:
    """Run until a signal; returns the exit code. Raises Failure on a crash, or if the user has to change something."""
    checkpoints = choose_checkpoints(options.small, options.large)
    check_free(options.port)
    with owned(options.data_dir) as data_dir:
        if options.json_ready is not None:
            _forget(options.json_ready)
        return asyncio.run(_Platform(options, data_dir, checkpoints).run())


class _Platform:
    def __init__(self, options: Options, data_dir: Path, checkpoints: tuple[Checkpoint, ...]) -> None:
        self._options = options
        self._data_dir = data_dir
        self._checkpoints = checkpoints
        self._started_at = time.monotonic()
        self._secrets = load_secrets(data_dir)
        self._console = Console()
        self._ports = _pick_ports(options.port, num_workers=len(checkpoints))
        self._plan = _plan(data_dir, checkpoints, self._ports, self._secrets)
        self._supervisor = Supervisor(self._console)
        self._num_signals = 0

    async def run(self) -> int:
        self._listen_to_signals()
        plan, add = self._plan, self._supervisor.add
        # Services are stopped in reverse order: the gateway before the services that it needs.
        add(plan.valkey)
        workers = [add(spec) for spec in plan.workers]
        clickhouse = add(plan.clickhouse)
        add(plan.consumer, needs=clickhouse.ready.wait)
        gateway = add(plan.gateway, needs=lambda: run_step(plan.migrate, self._console))
        self._console.say(f"starting on {self._data_dir}")
        try:
            await self._supervisor.run(lambda: self._make_ready(gateway, workers))
        except Crashed as crash:
            raise Failure(str(crash), exit_code=crash.exit_code) from crash
        self._console.say("stopped")
        return 0

    async def _make_ready(self, gateway: Service, workers: list[Service]) -> None:
        origin = f"http://{LOOPBACK}:{self._options.port}"
        await gateway.ready.wait()
        for worker in workers:
            await worker.ready.wait()
        try:
            self._secrets = await asyncio.to_thread(self._seed, origin)
            ready = make_ready(origin, self._secrets)
            if self._options.json_ready is not None:
                write_ready(self._options.json_ready, ready)
        except Failure as failure:
            raise Crashed(str(failure), failure.exit_code) from failure
        after_s, keys_file = time.monotonic() - self._started_at, self._data_dir / KEYS_FILE
        self._console.block(ready_block(ready, keys_file, after_s=after_s, shows_keys=self._console.is_terminal))

    def _seed(self, origin: str) -> Secrets:
        from tiergate.admin.client import AdminClient
        from tiergate.up.seed import ask_worker, await_replicas, seed_models, seed_tenants

        with AdminClient(origin, self._secrets.admin_key) as client:
            kept = seed_tenants(client, self._secrets, base_url=f"{origin}/v1")
            save_secrets(self._data_dir, kept)
            urls = [f"http://{LOOPBACK}:{port}" for port in self._ports.workers]
            pairs = zip(self._checkpoints, urls, strict=True)
            seed_models(client, [ask_worker(each, url, worker_key=kept.worker_key) for each, url in pairs])
            await_replicas(client, urls)
        return kept

    def _listen_to_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self._on_signal)

    def _on_signal(self) -> None:
        self._num_signals += 1
        if self._num_signals > 1:
            self._supervisor.kill()
        self._supervisor.request_stop()


def _plan(data_dir: Path, checkpoints: tuple[Checkpoint, ...], ports: Ports, kept: Secrets) -> Plan:
    """Raises Failure for a bad environment variable, before anything is started."""
    config = write_config(data_dir / "valkey", port=ports.valkey, password=kept.valkey_password)
    plan = make_plan(
        data_dir,
        checkpoints,
        ports=ports,
        kept=kept,
        valkey=(server_binary(), config),
        environment=os.environ,
        num_cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
    )
    settings = gateway_settings(None, port=ports.gateway, data_dir=data_dir, key_pepper=kept.key_pepper)
    if settings.host not in (LOOPBACK, "localhost", "0.0.0.0"):
        raise Failure(f"TIERGATE_HOST: up listens on {LOOPBACK} or, with 0.0.0.0, everywhere; not on {settings.host}")
    return plan


def _pick_ports(gateway: int, *, num_workers: int) -> Ports:
    valkey, clickhouse, *workers = free_ports(2 + num_workers)
    return Ports(gateway=gateway, valkey=valkey, clickhouse=clickhouse, workers=tuple(workers))


def _forget(path: Path) -> None:
    """Remove an earlier run's file, lest it be mistaken for ours. Raises Failure if ours could not be written."""
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise Failure(f"--json-ready {path} cannot be written: {error.strerror}") from error
    if not path.parent.is_dir():
        raise Failure(f"--json-ready {path}: there is no folder {path.parent}")
