"""Measures how long the console's pages take over many events and tenants, and the size of its first view.

    python -m benchmarks.console --events 10000000 --tenants 2000 --active 200 [--folder FOLDER]

Runs `tiergate gateway` over the events of benchmarks/usage_events.py, with tenants, keys and prices. A platform
administrator follows every link from the overview, at most a few pages of each kind. Gates: p95 from the request to the
last byte < 200 ms for the overview and < 500 ms for every other page; page, style and scripts of the first view
< 200 KB, and loaded in Chromium with an empty cache in < 1 s.
"""

import argparse
import asyncio
import json
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from urllib.parse import urljoin
from uuid import UUID

import httpx

from benchmarks.usage_events import MAKING_DEADLINE_S, make_events, tenant_id_of
from gateway.clock import utc_now
from gateway.domain.tenants.models import Tenant
from gateway.metering.rollups.keeper import RollupKeeper
from gateway.metering.schema import connect_migrated
from tests.support.browser import open_tab
from tests.support.clickhouse import running_clickhouse
from tests.support.crawling import HOME, Links, by_query, crawl
from tests.support.gateway_processes import started
from tests.support.gateways import Gateway, make_settings, running_gateway
from tests.support.valkey import ValkeyProcess

OVERVIEW_P95_MS, OTHER_P95_MS, FIRST_VIEW_KB, FIRST_VIEW_MS = 200.0, 500.0, 200.0, 1000.0
_NUM_VIEWS = 5
_NAVIGATION = "performance.getEntriesByType('navigation')[0]"
_PER_KIND = 5
"""How many pages of a kind are followed: as many as there are time ranges to choose from."""


@dataclass
class Kind:
    """A kind of page: those with the same path apart from ids, and the same query parameters."""

    urls: list[str]
    times_ms: list[float] = field(default_factory=list)

    @property
    def p95_ms(self) -> float:
        return round(sorted(self.times_ms)[int(0.95 * (len(self.times_ms) - 1))], 1)


async def time_pages(http: httpx.AsyncClient, kinds: dict[str, Kind], rounds: int) -> None:
    for _ in range(rounds):
        for kind in kinds.values():
            for url in kind.urls:
                began_s = time.perf_counter()
                (await http.get(url)).raise_for_status()
                kind.times_ms.append((time.perf_counter() - began_s) * 1000)


async def weigh(http: httpx.AsyncClient) -> float:
    """Kilobytes of the overview, its styles and scripts, as transferred."""
    reply = await http.get(HOME)
    replies = [reply, *[await http.get(urljoin(str(reply.url), part)) for part in Links(reply.text).parts]]
    return round(sum(each.num_bytes_downloaded for each in replies) / 1000, 1)


async def view(origin: str, key: str, profile: Path) -> float:
    """Milliseconds from requesting the overview until its load event: the median of several loads without a cache."""
    chromium = shutil.which("chromium") or sys.exit("this needs a browser: apt-get install chromium")
    async with open_tab(chromium, profile) as tab:
        await tab.log_in(origin, key)
        await tab.call("Network.setCacheDisabled", cacheDisabled=True)
        times_ms = []
        for _ in range(_NUM_VIEWS):
            await tab.go(f"{origin}{HOME}")
            await tab.until(f"{_NAVIGATION}.loadEventEnd > 0")
            times_ms.append(float(await tab.evaluate(f"{_NAVIGATION}.loadEventEnd")))
    return round(statistics.median(times_ms), 1)


async def seed(gateway: Gateway, num_tenants: int) -> str:
    """Create tenants, models, prices and keys; returns the key of an administrator who may also use models."""
    now = utc_now()
    tiers = ("free", "pro", "enterprise")
    async with gateway.services.sessions.begin() as session:
        session.add_all(
            Tenant(id=UUID(tenant_id_of(i)), name=f"tenant-{i:04}", tier=tiers[i % 3], created_at=now)
            for i in range(num_tenants)
        )
    for model_id, pool in (("model-0", "small"), ("model-3", "large")):
        await gateway.post("/models", {"id": model_id, "pool": pool, "context_window": 8192})
        await gateway.post("/prices", {"model_id": model_id, "prompt_nanousd": 100, "completion_nanousd": 400})
    for i in (0, num_tenants // 2):
        for name in ("app", "reader"):
            await gateway.post("/keys", {"tenant_id": tenant_id_of(i), "name": name, "scopes": ["inference"]})
    platform = next(each for each in (await gateway.admin.get("/keys")).json()["data"] if each["name"] == "bootstrap")
    scopes = ["platform-admin", "inference"]
    made = await gateway.post("/keys", {"tenant_id": platform["tenant_id"], "name": "operator", "scopes": scopes})
    return str(made["key"])


async def measure(url: str, folder: Path, redis_url: str, num_tenants: int, rounds: int) -> dict[str, object]:
    settings = make_settings(folder, redis_url, data_dir=folder / "data", clickhouse_url=url)
    async with running_gateway(settings) as seeded:
        key = await seed(seeded, num_tenants)
    variables = {"TIERGATE_KEY_PEPPER": settings.key_pepper.get_secret_value(), "TIERGATE_CLICKHOUSE_URL": url}
    async with started(folder, redis_url, **variables) as gateway:
        await gateway.until_accepting()
        async with httpx.AsyncClient(base_url=gateway.origin, timeout=60) as http:
            reply = await http.post(f"{HOME}/login", data={"key": key})
            assert reply.status_code == 303, reply.text
            found = await crawl(http, by_query, per_kind=_PER_KIND)
            kinds = {name: Kind(urls) for name, urls in found.pages.items()}
            await time_pages(http, kinds, rounds)
            weight_kb = await weigh(http)
        first_view_ms = await view(gateway.origin, key, folder / "profile")
    p95 = {name: kind.p95_ms for name, kind in kinds.items()}
    for name, kind in sorted(kinds.items(), key=lambda each: -each[1].p95_ms):
        print(f"{kind.p95_ms:8.1f} ms  {name}  ({kind.urls[0]})", file=sys.stderr)
    is_overview = {name: name.split("?")[0] == HOME for name in p95}
    overview_ms = max(p95[name] for name in p95 if is_overview[name])
    other_ms = max(p95[name] for name in p95 if not is_overview[name])
    return {
        "tenants": num_tenants,
        "kinds_of_pages": len(p95),
        "overview_p95_ms": overview_ms,
        "other_p95_ms": other_ms,
        "slowest": max((name for name in p95 if not is_overview[name]), key=lambda name: p95[name]),
        "first_view_kb": weight_kb,
        "first_view_ms": first_view_ms,
        "broken_links": found.broken,
        "yardstick": {
            "overview_p95_ms": OVERVIEW_P95_MS,
            "other_p95_ms": OTHER_P95_MS,
            "first_view_kb": FIRST_VIEW_KB,
            "first_view_ms": FIRST_VIEW_MS,
        },
        "gates": {
            "overview": overview_ms < OVERVIEW_P95_MS,
            "other": other_ms < OTHER_P95_MS,
            "weight": weight_kb < FIRST_VIEW_KB,
            "first_view": first_view_ms < FIRST_VIEW_MS,
            "links": not found.broken,
        },
    }


def fill(url: str, num_events: int, num_tenants: int, now: datetime) -> None:
    """Make events up to now, unless there are some, and roll them up."""
    with connect_migrated(url, deadline_s=MAKING_DEADLINE_S) as client:
        if not client.query("SELECT count() FROM usage_events").result_rows[0][0]:
            make_events(client, num_events, num_tenants, until=now)
    with closing(RollupKeeper(url)) as keeper:
        keeper.sweep(now=now)


@contextmanager
def swept(url: str) -> Iterator[None]:
    """Keeps sweeping the rollups, as a consumer does beside a gateway, which does not trust rollups swept long ago."""
    stop = threading.Event()
    with closing(RollupKeeper(url)) as keeper:
        thread = threading.Thread(target=keeper.run, args=(stop,), name="rollups")
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=10_000_000)
    parser.add_argument("--tenants", type=int, default=2_000)
    parser.add_argument("--active", type=int, default=200, help="tenants that have events")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--folder", type=Path, help="keeps the events there, and asks those that are there")
    options = parser.parse_args()
    with ExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="console-")))
        clickhouse = stack.enter_context(running_clickhouse(options.folder or work / "clickhouse"))
        valkey = ValkeyProcess(work)
        valkey.start()
        stack.callback(valkey.stop)
        url = f"{clickhouse.url}/usage"
        fill(url, options.events, options.active, utc_now())
        with swept(url):
            found = asyncio.run(measure(url, work / "gateway", valkey.url, options.tenants, options.rounds))
    print(json.dumps({"events": options.events, "active_tenants": options.active} | found))
    return 0 if all(found["gates"].values()) else 1  # type: ignore[attr-defined]


if __name__ == "__main__":
    sys.exit(main())
