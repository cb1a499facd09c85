"""Checks this machine: files, disk, file descriptors, the port, and secrets that can be guessed."""

import os
import resource
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

import httpx
from sqlalchemy.engine import make_url

from gateway.settings import DEFAULT_CONFIG, GatewaySettings
from tiergate.doctor.findings import Finding, error, warning
from tiergate.up.secrets import KEYS_FILE

MIN_OPEN_FILES = 4096
MIN_FREE_SHARE = 0.05
MIN_PEPPER_CHARS = 8
"""Distinct characters, not the length."""
PORT_DEADLINE_S = 3.0
_OTHERS = 0o077
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


def look_at_files(settings: GatewaySettings, config: Path | None) -> Iterator[Finding]:
    folder = settings.data_dir
    if not folder.is_dir():
        yield error(
            "data-dir-missing", f"there is no folder {folder}", "run `tiergate migrate`, or set TIERGATE_DATA_DIR"
        )
    elif folder.stat().st_uid != os.geteuid():
        yield error("data-dir-owner", f"{folder} belongs to another user", f"chown -R it to the user {os.geteuid()}")
    elif _is_open(folder):
        yield error(
            "data-dir-mode", f"others may look into {folder}, where keys and prompts lie", f"chmod 700 {folder}"
        )
    for root in settings.adapter_roots:
        if "://" not in root and not Path(root).is_dir():
            yield error("adapter-root", f"there is no folder {root}", "make it, or correct TIERGATE_ADAPTER_ROOTS")
    for path in _secret_files(settings, config):
        if path.is_file() and _is_open(path):
            yield error("secret-file-mode", f"others may read {path}, which holds secrets", f"chmod 600 {path}")
    store = settings.store_url
    if "://" not in store and Path(store).exists() and not os.access(store, os.W_OK):
        yield error("artifacts", f"{store} cannot be written to", "chown it to the gateway's user")


def look_at_disk(settings: GatewaySettings) -> Iterator[Finding]:
    folder = settings.data_dir
    if not folder.is_dir():
        return
    usage = shutil.disk_usage(folder)
    if usage.free < settings.outbox_min_free_bytes:
        yield error(
            "disk-full",
            f"{usage.free:,} bytes are free at {folder}, fewer than TIERGATE_OUTBOX_MIN_FREE_BYTES: no request passes",
            "free some, or move TIERGATE_DATA_DIR to a larger disk",
        )
    elif usage.free < usage.total * MIN_FREE_SHARE:
        yield warning("disk-nearly-full", f"{usage.free:,} bytes are free at {folder}", "free some before it is full")


def look_at_limits() -> Iterator[Finding]:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < MIN_OPEN_FILES:
        yield warning(
            "open-files",
            f"a process may open {soft} files, which bounds its connections",
            "ulimit -n 65536, or LimitNOFILE=65536 in the unit",
        )


def look_at_secrets(settings: GatewaySettings) -> Iterator[Finding]:
    peppers = settings.peppers
    for name, pepper in (("TIERGATE_KEY_PEPPER", peppers.current), ("TIERGATE_NEXT_KEY_PEPPER", peppers.upcoming)):
        if pepper is not None and len(set(pepper)) < MIN_PEPPER_CHARS:
            todo = "openssl rand -hex 32 makes one; docs/operations.md says how to replace it"
            yield error("pepper-weak", f"{name} can be guessed", todo)
    if not settings.worker_keys:
        yield warning(
            "worker-key",
            "there is no TIERGATE_WORKER_KEY: only workers on loopback can be used",
            "set it on both sides",
        )
    elif not set(settings.worker_keys).isdisjoint(peppers.all):
        yield error(
            "worker-key-reused", "the worker key is the pepper, which workers must not know", "choose another key"
        )


def look_at_port(settings: GatewaySettings) -> Iterator[Finding]:
    if settings.port == 0:
        return
    host = settings.host if settings.host not in ("0.0.0.0", "::") else "127.0.0.1"
    at = f"http://{f'[{host}]' if ':' in host else host}:{settings.port}"
    try:
        answer = httpx.get(f"{at}/health", timeout=PORT_DEADLINE_S)
    except httpx.ConnectError:
        # The port is free, so the gateway can be started.
        return
    except httpx.HTTPError:
        yield error("port-taken", f"something at {at} does not speak HTTP", "stop it, or choose another TIERGATE_PORT")
        return
    if "x-request-id" not in answer.headers:
        yield error(
            "port-taken", f"another program than a gateway answers at {at}", "stop it, or choose another TIERGATE_PORT"
        )
    elif settings.host not in _LOOPBACK:
        yield warning(
            "no-tls",
            f"the gateway listens on {settings.host} without TLS",
            "put a proxy with TLS in front, and let it alone in",
        )


def _secret_files(settings: GatewaySettings, config: Path | None) -> Iterator[Path]:
    yield config or DEFAULT_CONFIG
    yield settings.data_dir / KEYS_FILE
    url = make_url(settings.sql_url)
    # A database in the data directory is protected by that folder's mode.
    if url.get_backend_name() == "sqlite" and url.database and Path(url.database).parent != settings.data_dir:
        yield Path(url.database)


def _is_open(path: Path) -> bool:
    return bool(stat.S_IMODE(path.stat().st_mode) & _OTHERS)
