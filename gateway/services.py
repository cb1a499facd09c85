"""What a request may need, built once in `app.py` and passed on as one value; how routes ask FastAPI for it."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated
from uuid import UUID

from fastapi import Depends, Request

from gateway.artifacts.references import References
from gateway.artifacts.store import ArtifactStore
from gateway.billing.invoicing import Invoicing
from gateway.billing.reconciliation import Reconciler
from gateway.billing.rerating import Rerating
from gateway.database import Sessions
from gateway.domain.catalog import CatalogCache
from gateway.domain.keys.keyring import Keyring
from gateway.domain.principal import Principal
from gateway.http.outbound import Outbound
from gateway.limits.limiter import Limiter
from gateway.log_context import note_tenant
from gateway.metering.backlog import Backlog
from gateway.metering.outbox import Outbox
from gateway.metering.queries import UsageQueries
from gateway.metering.refusals import RefusalCounter
from gateway.metering.room import OutboxRoom
from gateway.metric_snapshots import Snapshot
from gateway.metrics import Metrics
from gateway.overload import OverloadGuard
from gateway.settings import GatewaySettings
from gateway.upstream.bundles import BundleStore
from gateway.upstream.client import WorkerClient
from gateway.upstream.conversations import Conversations
from gateway.upstream.registry import Registry
from router.gate import Gates
from router.weights import Weights

if TYPE_CHECKING:
    from gateway.tracing.spans import Tracing

AddSiblings = Callable[[Snapshot], Awaitable[Snapshot]]
"""From what this process measured to what all processes of this gateway did. Raises Unavailable."""


async def without_siblings(own: Snapshot) -> Snapshot:
    return own


@dataclass(frozen=True, slots=True)
class Services:
    settings: GatewaySettings
    sessions: Sessions
    keyring: Keyring
    catalog: CatalogCache
    limiter: Limiter
    registry: Registry
    gates: Gates
    conversations: Conversations
    bundles: BundleStore
    artifacts: ArtifactStore
    references: References
    router_weights: Weights
    shadow_weights: Weights | None
    workers: WorkerClient
    outbox: Outbox
    refusals: RefusalCounter
    reconciler: Reconciler
    usage: UsageQueries
    rerating: Rerating
    invoicing: Invoicing
    outbound: Outbound
    backlog: Backlog
    room: OutboxRoom
    metrics: Metrics
    overload: OverloadGuard
    tracing: "Tracing | None"
    is_draining: Callable[[], bool]
    """The server has been told to stop: no new requests, please."""
    add_siblings: AddSiblings

    async def reload(self) -> None:
        """Make a change through the admin plane count here at once; other gateways see it within seconds."""
        self.keyring.forget()
        await self.catalog.reload()
        self.registry.redraw()


def services(request: Request) -> Services:
    found: Services = request.app.state.services
    return found


def sessions(found: "ServicesDep") -> Sessions:
    return found.sessions


async def authenticated(request: Request, found: "ServicesDep") -> Principal:
    principal = await found.keyring.authenticate(request.headers.get("authorization"))
    note_tenant(principal.tenant_text)
    return principal


async def tenant_admin(principal: "PrincipalDep") -> Principal:
    principal.require("tenant-admin", "platform-admin")
    return principal


async def platform_admin(principal: "PrincipalDep") -> Principal:
    principal.require("platform-admin")
    return principal


def visible_tenant(principal: Principal) -> UUID | None:
    """Whose rows an administrator may list: its own tenant's, or (None) everybody's."""
    return None if principal.is_platform_admin else principal.tenant_id


ServicesDep = Annotated[Services, Depends(services)]
SessionsDep = Annotated[Sessions, Depends(sessions)]
PrincipalDep = Annotated[Principal, Depends(authenticated)]
AdminDep = Annotated[Principal, Depends(tenant_admin)]
PlatformDep = Annotated[Principal, Depends(platform_admin)]
