from collections.abc import Iterator
from contextlib import closing

import pytest

from gateway.clock import utc_now
from gateway.metering.store import UsageStore
from tests.support.clickhouse import running_clickhouse
from tests.support.dashboards import Site, running_site
from tests.support.events import make_event


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """acme has three requests on the small model, hobby two on the large one."""
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
        with closing(UsageStore(clickhouse.url)) as store:
            store.insert(events)
        yield running
