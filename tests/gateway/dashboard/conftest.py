import os
import shutil
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest

from gateway.clock import utc_now
from gateway.metering.store import UsageStore
from protocol.ids import new_request_id
from protocol.usage import PriceLine, StepsMs
from tests.support.clickhouse import (
    ClickHouseProcess,
    GivenClickHouse,
    any_clickhouse,
    own_database,
    running_clickhouse,
)
from tests.support.consoles import Visit, visit
from tests.support.dashboards import Site, running_site
from tests.support.events import make_event
from tests.support.gateways import ADMIN_KEY, Gateway, make_settings, running_gateway
from tests.support.money_scenes import MoneyScene, money_scene
from tests.support.valkey import ValkeyProcess


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """acme has three requests on the small model, hobby two on the large one. Each has one more that failed days
    ago."""
    folder = tmp_path_factory.mktemp("site")
    with running_clickhouse(folder / "clickhouse") as clickhouse, running_site(folder, clickhouse.url) as running:
        events = [
            make_event(
                f"request-{tenant.id}-{i}",
                tenant_id=str(tenant.id),
                key_id=str(tenant.key_id),
                model_version=model,
                adapter_id=str(tenant.adapter_id),
                user_id="<script>",
                requested_model="<script>",
                cost_nanousd=cost,
                timestamp=utc_now(),
            )
            for tenant, model, cost, count in (
                (running.acme, "the-small-model@0123456789", 10**9, 3),
                (running.hobby, "the-large-model@0123456789", 10**10, 2),
            )
            for i in range(count)
        ]
        ago = utc_now() - timedelta(days=3)
        events += [
            make_event(
                new_request_id(ago),
                tenant_id=str(tenant.id),
                key_id=str(tenant.key_id),
                user_id="=1+1",
                timestamp=ago,
                status="error",
                error_code="upstream_failed",
                error_message="the worker broke off",
                cost_nanousd=0,
                steps_ms=StepsMs(authenticate=0.1, admit=1.5, end=180.0),
                price_lines=(PriceLine(kind="input", quantity=12, unit_price_nanousd=100, amount_nanousd=1200),),
                decision='{"reason":"complex","score":0.75,"threshold":0.25,"pool":"small","tried":["worker-1"]}',
            )
            for tenant in (running.acme, running.hobby)
        ]
        with closing(UsageStore(clickhouse.url)) as store:
            store.insert(events)
        yield running


@pytest.fixture(scope="session")
def chromium() -> str:
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if found is None and os.environ.get("CI") == "true":
        pytest.fail("chromium is not installed; .ci/run installs it")
    if found is None:
        pytest.skip("chromium is not installed")
    return found


@pytest.fixture(scope="session")
def clickhouse(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClickHouseProcess | GivenClickHouse]:
    """One engine for all tests; each uses a database of its own."""
    with any_clickhouse(tmp_path_factory.mktemp("clickhouse")) as running:
        yield running


@pytest.fixture
async def money(
    tmp_path: Path, valkey: ValkeyProcess, clickhouse: ClickHouseProcess | GivenClickHouse
) -> AsyncIterator[MoneyScene]:
    with own_database(clickhouse) as url:
        async with money_scene(tmp_path, valkey.url, url) as scene:
            yield scene


@pytest.fixture
async def gateway(tmp_path: Path, valkey: ValkeyProcess) -> AsyncIterator[Gateway]:
    """A gateway without ClickHouse, so that usage cannot be read."""
    async with running_gateway(make_settings(tmp_path, valkey.url)) as running:
        yield running


@pytest.fixture
async def admin(gateway: Gateway) -> AsyncIterator[Visit]:
    """The platform's administrator, logged in to the console."""
    async with visit(gateway, ADMIN_KEY) as visiting:
        yield visiting
