"""Everything that requests may need, built once in `resources.py` and passed on as one value, and the FastAPI
dependencies of routes."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated
from uuid import UUID

from fastapi import Depends, Request

from gateway.answer_cache.store import AnswerCache
from gateway.artifacts.files import FileStore
from gateway.artifacts.references import References
from gateway.artifacts.store import ArtifactStore
from gateway.billing.invoicing import Invoicing
from gateway.billing.reconciliation import Reconciler
from gateway.billing.rerating import Rerating
from gateway.database import Sessions
from gateway.domain.catalog import CatalogCache
from gateway.domain.keys.keyring import Keyring
from gateway.domain.notices import Notices
from gateway.domain.principal import SEES_SPENDING, Principal
from gateway.domain.tools.tool_book import ToolBook
from gateway.erasure.subject import Stores
from gateway.guardrails.checking import Guard
from gateway.http.outbound import Outbound
from gateway.idempotency.store import AnswerStore
from gateway.limits.limiter import Limiter
from gateway.log_context import note_tenant
from gateway.metering.backlog import Backlog
from gateway.metering.outbox import Outbox
from gateway.metering.queries import UsageQueries
from gateway.metering.refusals import RefusalCounter
from gateway.metering.room import OutboxRoom
from gateway.metric_snapshots import Snapshot
from gateway.metrics import Metrics
from gateway.oidc.client import OidcClient
from gateway.overload import OverloadGuard
from gateway.sessions.conversation import Conversation, Meta
from gateway.sessions.responses import ResponseMeta, StoredResponse
from gateway.sessions.store import Store
from gateway.sessions.summaries import SummaryQueue
from gateway.settings import GatewaySettings
from gateway.tools.caller import ToolCaller
from gateway.upstream.bundles import BundleStore
from gateway.upstream.client import WorkerClient
from gateway.upstream.conversations import Conversations
from gateway.upstream.registry import Registry
from router.gate import Gates
from router.weights import Weights

if TYPE_CHECKING:
    from gateway.tracing.spans import Tracing

AddSiblings = Callable[[Snapshot], Awaitable[Snapshot]]
"""Maps this process's metrics to those of all processes of this gateway. Raises Unavailable."""


async def without_siblings(own: Snapshot) -> Snapshot:
    return own


@dataclass(frozen=True, slots=True)
class Services:
    settings: GatewaySettings
    sessions: Sessions
    keyring: Keyring
    catalog: CatalogCache
    notices: Notices
    limiter: Limiter
    registry: Registry
    gates: Gates
    conversations: Conversations
    answers: AnswerStore
    answer_cache: AnswerCache
    bundles: BundleStore
    artifacts: ArtifactStore
    references: References
    files: FileStore
    router_weights: Weights
    shadow_weights: Weights | None
    workers: WorkerClient
    outbox: Outbox
    refusals: RefusalCounter
    reconciler: Reconciler
    usage: UsageQueries
    rerating: Rerating
    invoicing: Invoicing
    oidc: OidcClient | None
    """The identity provider for logins; None: people log in with keys only."""
    outbound: Outbound
    tool_outbound: Outbound
    """For tools, whose answers tenants see: private addresses are allowed only if the operator named the tool hosts."""
    tool_book: ToolBook
    tools: ToolCaller
    erasure_stores: Stores
    guard: Guard
    session_store: Store[Meta, Conversation]
    response_store: Store[ResponseMeta, StoredResponse]
    summaries: SummaryQueue
    backlog: Backlog
    room: OutboxRoom
    metrics: Metrics
    overload: OverloadGuard
    tracing: "Tracing | None"
    is_draining: Callable[[], bool]
    """Whether the server has been told to stop and should get no new requests."""
    add_siblings: AddSiblings

    async def reload(self) -> None:
        """Apply an admin change here at once, and tell all other gateways to read it."""
        self.keyring.forget()
        await self.catalog.reload()
        self.registry.redraw()
        await self.notices.tell()

    async def end_key(self, *prefixes: str | None) -> None:
        """Make every gateway reject keys with these prefixes until it has read them again."""
        ended = [prefix for prefix in prefixes if prefix is not None]
        for prefix in ended:
            self.keyring.end(prefix)
        await self.notices.tell(ended=ended)


def services(request: Request) -> Services:
    found: Services = request.app.state.services
    return found


def sessions(found: "ServicesDep") -> Sessions:
    return found.sessions


async def authenticated(request: Request, found: "ServicesDep") -> Principal:
    principal = await found.keyring.authenticate(request.headers.get("authorization"))
    note_tenant(principal.tenant_text)
    principal.require_address(request.client.host if request.client else "")
    return principal


async def usage_reader(principal: "PrincipalDep") -> Principal:
    principal.require(*SEES_SPENDING)
    return principal


async def inference_user(principal: "PrincipalDep") -> Principal:
    principal.require("inference")
    return principal


async def tenant_admin(principal: "PrincipalDep") -> Principal:
    principal.require("tenant-admin", "platform-admin")
    return principal


async def platform_admin(principal: "PrincipalDep") -> Principal:
    principal.require("platform-admin")
    return principal


def visible_tenant(principal: Principal) -> UUID | None:
    """The tenant whose rows an administrator may list; None: all tenants."""
    return None if principal.is_platform_admin else principal.tenant_id


def asked_tenant(principal: Principal, tenant_id: UUID | None) -> UUID | None:
    """The tenant to list if the caller asked for `tenant_id`; None: all tenants. Raises NotFound for another's."""
    if tenant_id is not None:
        principal.require_tenant(tenant_id)
    return tenant_id or visible_tenant(principal)


ServicesDep = Annotated[Services, Depends(services)]
SessionsDep = Annotated[Sessions, Depends(sessions)]
PrincipalDep = Annotated[Principal, Depends(authenticated)]
UsageReaderDep = Annotated[Principal, Depends(usage_reader)]
InferenceDep = Annotated[Principal, Depends(inference_user)]
AdminDep = Annotated[Principal, Depends(tenant_admin)]
PlatformDep = Annotated[Principal, Depends(platform_admin)]
