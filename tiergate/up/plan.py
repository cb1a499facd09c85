"""Plans the processes of `up`, with their arguments and environment. Pure: nothing is started here."""

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from tiergate.up.checkpoints import Checkpoint
from tiergate.up.ports import LOOPBACK
from tiergate.up.probes import answers_http, answers_ping
from tiergate.up.secrets import Secrets
from tiergate.up.service import Spec
from tiergate.up.valkey import gateway_redis_url, redis_url

GATEWAY_STOP_S = 40.0
"""Longer than the gateway's own drain, so that streams end by themselves."""
LOADED_WITHIN_S = 1800.0
"""How long a worker may take to load: a large checkpoint on a slow disk needs minutes."""


class Ports(msgspec.Struct, kw_only=True, frozen=True):
    gateway: int
    valkey: int
    clickhouse: int
    workers: tuple[int, ...]


class Plan(msgspec.Struct, kw_only=True, frozen=True):
    valkey: Spec
    clickhouse: Spec
    workers: tuple[Spec, ...]
    migrate: Spec
    consumer: Spec
    gateway: Spec


def make_plan(
    data_dir: Path,
    checkpoints: Sequence[Checkpoint],
    *,
    ports: Ports,
    kept: Secrets,
    valkey: tuple[Path, Path],
    environment: Mapping[str, str],
    num_cores: int,
) -> Plan:
    """valkey: the server's binary and its configuration file."""
    env = {**environment, **_settings(data_dir, ports=ports, kept=kept, environment=environment)}
    clickhouse_dir, threads = str(data_dir / "clickhouse"), max(1, num_cores // len(checkpoints))
    return Plan(
        valkey=Spec(
            name="valkey",
            argv=tuple(map(str, valkey)),
            env=environment,
            probe=answers_ping(ports.valkey, password=kept.valkey_password),
            # Advice on kernel settings that only matters for larger servers than this one can become.
            muted=("Memory overcommit must be enabled",),
        ),
        clickhouse=Spec(
            name="clickhouse",
            argv=_tiergate("clickhouse", "--data-dir", clickhouse_dir, "--port", str(ports.clickhouse)),
            env={**env, "TIERGATE_CLICKHOUSE_PASSWORD": kept.clickhouse_password},
            probe=answers_http(ports.clickhouse, "/ping"),
        ),
        workers=tuple(
            _worker(checkpoint, port, data_dir / f"ledger-{checkpoint.pool}.sqlite", env={**env, **_threads(threads)})
            for checkpoint, port in zip(checkpoints, ports.workers, strict=True)
        ),
        migrate=Spec(name="migrate", argv=_tiergate("migrate"), env=env),
        consumer=Spec(name="consumer", argv=_tiergate("consumer"), env=env),
        gateway=Spec(
            name="gateway",
            argv=_tiergate("gateway", "--port", str(ports.gateway)),
            env=env,
            probe=answers_http(ports.gateway, "/health"),
            stop_within_s=GATEWAY_STOP_S,
        ),
    )


def _worker(checkpoint: Checkpoint, port: int, ledger: Path, *, env: Mapping[str, str]) -> Spec:
    adapters = [f"--adapter={name}={path}" for name, path in checkpoint.adapters.items()]
    options = {
        "--model": str(checkpoint.path),
        "--name": checkpoint.name,
        "--pool": checkpoint.pool,
        "--host": LOOPBACK,
        "--port": str(port),
        "--ledger": str(ledger),
        "--artifacts-dir": str(ledger.parent / f"adapters-{checkpoint.pool}"),
    }
    arguments = [text for pair in options.items() for text in pair]
    return Spec(
        name=f"worker-{checkpoint.pool}",
        argv=_tiergate("worker", *arguments, *adapters),
        env=env,
        probe=answers_http(port, "/ready"),
        ready_within_s=LOADED_WITHIN_S,
    )


def _settings(data_dir: Path, *, ports: Ports, kept: Secrets, environment: Mapping[str, str]) -> dict[str, str]:
    """Settings as environment variables, since every user of the machine can read arguments."""
    artifacts = environment.get("TIERGATE_ARTIFACTS_URL") or str(data_dir / "artifacts")
    port, password = ports.valkey, kept.valkey_password
    return {
        "TIERGATE_DATA_DIR": str(data_dir),
        "TIERGATE_DATABASE_URL": f"sqlite+aiosqlite:///{data_dir / 'tiergate.db'}",
        "TIERGATE_REDIS_URL": gateway_redis_url(data_dir / "valkey", port=port, password=password),
        "TIERGATE_CLICKHOUSE_URL": f"http://tiergate:{kept.clickhouse_password}@{LOOPBACK}:{ports.clickhouse}",
        "TIERGATE_ARTIFACTS_URL": artifacts,
        "TIERGATE_WORKER_ARTIFACTS_URL": artifacts,
        "TIERGATE_KEY_PEPPER": kept.key_pepper,
        "TIERGATE_BOOTSTRAP_ADMIN_KEY": kept.admin_key,
        "TIERGATE_WORKER_KEY": kept.worker_key,
        "TIERGATE_WORKER_REGISTER": redis_url(port=port, password=password),
        # The output of `up` is for people.
        "TIERGATE_LOG_FORMAT": "text",
        "PYTHONUNBUFFERED": "1",
    }


def _threads(count: int) -> dict[str, str]:
    """Bounds the threads of each worker. A worker uses fewer for a model that is too small to gain from them."""
    return {name: os.environ.get(name, str(count)) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}


def _tiergate(*arguments: str) -> tuple[str, ...]:
    return (sys.executable, "-m", "tiergate", *arguments)
