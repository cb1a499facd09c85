"""Everything that a request may need, built once in `app.py` and passed on as a value."""

from collections.abc import Callable
from dataclasses import dataclass

from gateway.catalog import CatalogCache
from gateway.database import Sessions
from gateway.keys.keyring import Keyring
from gateway.limits.limiter import Limiter
from gateway.metering.outbox import Outbox
from gateway.metering.queries import UsageQueries
from gateway.metrics import Metrics
from gateway.settings import GatewaySettings
from gateway.upstream.bundles import BundleStore
from gateway.upstream.client import WorkerClient
from gateway.upstream.registry import Registry


@dataclass(frozen=True, slots=True)
class Services:
    settings: GatewaySettings
    sessions: Sessions
    keyring: Keyring
    catalog: CatalogCache
    limiter: Limiter
    registry: Registry
    bundles: BundleStore
    workers: WorkerClient
    outbox: Outbox
    usage: UsageQueries
    metrics: Metrics
    is_draining: Callable[[], bool]
    """The server has been told to stop: no new requests, please."""

    async def reload(self) -> None:
        """After an administrator's change: this gateway knows it at once, the others within seconds."""
        self.keyring.forget()
        await self.catalog.reload()
        self.registry.redraw()
