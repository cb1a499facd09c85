"""Checks that pools of other engines take part in routing, limits and metering, and in tools and structured output.

python -m benchmarks.interop [--engines llama vllm]

The first engine serves the small pool, the last one the large pool; a single engine serves both. Each engine is
installed from PyPI into an environment of its own under `.cache/interop` (minutes, and gigabytes for vLLM) and serves a
demo model. Prints one JSON line per engine, with the share of its checks that hold; exits 1 if one does not, or if an
engine could not be installed.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from benchmarks.gateway.admin import Admin
from benchmarks.gateway.machine import assign_cores
from benchmarks.gateway.report import Gate, Report, Row
from benchmarks.gateway.servers import Gateway, Site, Upstreams, running_valkey
from benchmarks.interop.calls import Asking, check_calls
from benchmarks.interop.engines import (
    ENGINE_KEY,
    LLAMA_CPP,
    MODEL_THERE,
    ROOT,
    VLLM,
    Engine,
    NotInstalled,
    serving,
)
from benchmarks.platform import end_on_sigterm

ENGINES = {engine.name: engine for engine in (LLAMA_CPP, VLLM)}
START_WITHIN_S = 300.0
EASY, HARD = (
    "Hi!",
    "Prove step by step that there are infinitely many primes, then write the proof as a Python program.",
)
_EVENTUALLY_S = 15.0


@dataclass
class Checks:
    """The names of checks that held, and of those that failed with what was seen."""

    held: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)

    def check(self, name: str, condition: object, seen: object = "") -> None:
        if condition:
            self.held.append(name)
        else:
            self.failed[name] = str(seen)[:300]


@dataclass
class Client:
    """A client with a tenant of its own, and the sum of the usage that its answers reported."""

    http: httpx.Client
    prompt_tokens: int = 0
    completion_tokens: int = 0

    def ask(self, model: str, text: str = EASY, **fields: Any) -> httpx.Response:
        body = {"model": model, "messages": [{"role": "user", "content": text}], "max_tokens": 12, "temperature": 0}
        reply = self.http.post("/v1/chat/completions", json=body | fields)
        for usage in _usages(reply):
            self.prompt_tokens += usage["prompt_tokens"]
            self.completion_tokens += usage["completion_tokens"]
        return reply


def _usages(reply: httpx.Response) -> Iterator[dict[str, int]]:
    for chunk in _payloads(reply):
        if chunk.get("usage"):
            yield chunk["usage"]


def _payloads(reply: httpx.Response) -> list[dict[str, Any]]:
    if reply.headers["content-type"].startswith("text/event-stream"):
        return [json.loads(line[6:]) for line in reply.text.splitlines() if line.startswith("data: {")]
    return [reply.json()]


def _text(reply: httpx.Response) -> str:
    choices = [choice for chunk in _payloads(reply) for choice in chunk.get("choices", ())]
    return "".join((choice.get("delta") or choice.get("message") or {}).get("content") or "" for choice in choices)


def main() -> None:
    end_on_sigterm()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=list(ENGINES))
    report = Report()
    installed: list[tuple[Engine, str]] = []
    for name in parser.parse_args().engines:
        try:
            installed.append((ENGINES[name], ENGINES[name].install()))
        except NotInstalled as error:
            report.add(_row(name, None, {"not_installed": str(error)}))
    if installed:
        with ExitStack() as stack:
            _measure(report, installed, stack)
    report.print_table()
    sys.exit(0 if report.has_passed else 1)


def _measure(report: Report, installed: Sequence[tuple[Engine, str]], stack: ExitStack) -> None:
    pools = {"small": installed[0][0], "large": installed[-1][0]}
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tiergate-interop-")))
    served = {
        name: stack.enter_context(serving(engine, ROOT / "demo" / "models" / name, within_s=START_WITHIN_S))
        for name, engine in pools.items()
    }
    (folder / "tiergate.toml").write_text("".join(_pool(name, pools[name], url) for name, (url, _) in served.items()))
    with _gateway(folder) as gateway:
        admin = Admin(gateway.origin)
        for name in pools:
            admin.set_price(f"demo-{name}", prompt_nanousd=100, completion_nanousd=400)
        by_pool = {name: _check_pool(gateway, admin, name, engine) for name, engine in pools.items()}
        _check_routing(gateway, admin, by_pool["small"])
        _check_loss(gateway, admin, served["small"][1].kill, by_pool["small"])
    for engine, version in installed:
        found = [by_pool[name] for name, each in pools.items() if each is engine]
        failed = {name: why for checks in found for name, why in checks.failed.items()}
        num_held = sum(len(checks.held) for checks in found)
        share = num_held / (num_held + len(failed))
        report.add(_row(engine.name, share, {"version": version, "checks": num_held + len(failed), "failed": failed}))


def _row(name: str, share: float | None, details: dict[str, object]) -> Row:
    gate = Gate(">=", 1.0)
    return Row(benchmark=f"interop.{name}", unit="of its checks hold", value=share, gate=gate, details=details)


def _pool(name: str, engine: Engine, url: str) -> str:
    lacks = json.dumps(sorted(engine.lacks))
    member = (
        f'{{ url = "{url}", engine = "openai", model = "{MODEL_THERE}", api_key_env = "INTEROP_KEY", lacks = {lacks} }}'
    )
    tokenizer = ROOT / "demo" / "models" / name
    return (
        f'[pools.{name}]\nmodel = "demo-{name}"\ncontext_window = 1024\ntokenizer = "{tokenizer}"\n'
        f"members = [{member}]\n\n"
    )


@contextmanager
def _gateway(folder: Path) -> Iterator[Gateway]:
    cores = assign_cores()
    with running_valkey(folder, cores) as redis_url:
        site = Site(folder, redis_url, Upstreams({}), cores, extra={"INTEROP_KEY": ENGINE_KEY})
        site.migrate()
        with site.running_gateway("interop") as gateway:
            yield gateway


def _client(gateway: Gateway, admin: Admin, name: str, *, tier: str = "enterprise") -> Client:
    key = admin.make_key(f"tenant-{name}", tier=tier)
    headers = {"Authorization": f"Bearer {key}"}
    return Client(httpx.Client(base_url=gateway.origin, headers=headers, timeout=120))


def _check_pool(gateway: Gateway, admin: Admin, pool: str, engine: Engine) -> Checks:
    """Check a pool that clients name: answers, names, streams, usage, limits and metering."""
    checks, client = Checks(), _client(gateway, admin, pool)
    before = _metered(gateway, pool)
    whole = client.ask(pool)
    checks.check(f"{pool}: a whole answer", whole.status_code == 200 and _text(whole), whole.text)
    checks.check(f"{pool}: under our name", whole.json().get("model") == f"demo-{pool}", whole.text)
    checks.check(f"{pool}: its own name stays private", MODEL_THERE not in whole.text, whole.text)
    stream = client.ask(pool, stream=True, stream_options={"include_usage": True})
    checks.check(f"{pool}: the stream says the same", _text(stream) == _text(whole), stream.text)
    checks.check(f"{pool}: the stream ends", stream.text.endswith("data: [DONE]\n\n"), stream.text)
    bad = client.ask(pool, temperature=7)
    checks.check(f"{pool}: nonsense is refused by name", bad.status_code == 400 and "temperature" in bad.text, bad.text)
    metered = _metered(gateway, pool)
    told = (before[0] + client.prompt_tokens, before[1] + client.completion_tokens)
    if len(list(_usages(stream))):
        checks.check(f"{pool}: metered as told", metered == told, (metered, told))
    else:
        # Without usage in its streams, our tokenizer counts prompt tokens, and each event with text is one token.
        checks.check(
            f"{pool}: the stream is metered", _is_stream_metered(metered, told, stream, whole), (metered, told)
        )
    if engine.shows_load:
        workers = admin.call("GET", "/workers", {})["data"]
        loads = [each["load"] for each in workers if each["pool"] == pool]
        checks.check(f"{pool}: its load is read", all(loads) and loads, workers)
    calling = Asking(f"{gateway.origin}/v1", admin.make_key(f"tenant-{pool}-calls", tier="enterprise"), pool)
    for name, holds, seen in check_calls(calling, engine.lacks):
        checks.check(f"{pool}: {name}", holds, seen)
    limited = _client(gateway, admin, f"{pool}-limited", tier="free")
    admin.set_limits("free", {"requests_per_minute": 2, "allowed_pools": [pool]})
    statuses = [limited.ask(pool).status_code for _ in range(3)]
    checks.check(f"{pool}: limits hold", statuses == [200, 200, 429], statuses)
    return checks


def _is_stream_metered(
    metered: tuple[int, int], told: tuple[int, int], stream: httpx.Response, whole: httpx.Response
) -> bool:
    [usage] = list(_usages(whole))
    num_events = sum(bool(chunk["choices"]) for chunk in _payloads(stream))
    prompt, completion = metered[0] - told[0], metered[1] - told[1]
    return prompt == usage["prompt_tokens"] and abs(completion - usage["completion_tokens"]) <= 1 <= num_events


def _check_routing(gateway: Gateway, admin: Admin, checks: Checks) -> None:
    client = _client(gateway, admin, "router")
    for text, pool in ((EASY, "small"), (HARD, "large")):
        reply = client.ask("auto", text)
        checks.check(f"auto sends {pool}'s there", reply.headers.get("x-tiergate-pool") == pool, dict(reply.headers))


def _check_loss(gateway: Gateway, admin: Admin, kill: Callable[[], None], checks: Checks) -> None:
    """Kill the small pool's engine: requests that may go to the large pool go there."""
    client = _client(gateway, admin, "loss")
    kill()
    deadline, reply = time.monotonic() + _EVENTUALLY_S, client.ask("auto")
    while reply.headers.get("x-tiergate-route") != "unavailable" and time.monotonic() < deadline:
        time.sleep(0.5)
        reply = client.ask("auto")
    told = (reply.status_code, reply.headers.get("x-tiergate-pool"), reply.headers.get("x-tiergate-route"))
    checks.check("auto goes on without the small pool", told == (200, "large", "unavailable"), told)
    named = client.ask("small")
    checks.check("who names the lost pool is told", named.status_code in (502, 503), named.text)


def _metered(gateway: Gateway, pool: str) -> tuple[int, int]:
    """The prompt and completion tokens that the gateway has counted for the pool."""
    found = {"prompt": 0, "completion": 0}
    for line in httpx.get(f"{gateway.origin}/metrics", timeout=5).text.splitlines():
        if line.startswith("tiergate_tokens_total{") and f'pool="{pool}"' in line:
            for kind in found:
                if f'kind="{kind}"' in line:
                    found[kind] += int(float(line.split()[-1]))
    return found["prompt"], found["completion"]


if __name__ == "__main__":
    main()
