"""The application: every resource opened once, every route in its place."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any
from uuid import uuid4

from fastapi import APIRouter, FastAPI
from sqlalchemy.exc import SQLAlchemyError
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.admin.adapters import FORM_OVERHEAD_BYTES, is_adapter_upload
from gateway.admin.adapters import router as adapters_router
from gateway.admin.audit import router as audit_router
from gateway.admin.billing_accounts import router as billing_accounts_router
from gateway.admin.invoices import credits_router
from gateway.admin.invoices import router as invoices_router
from gateway.admin.keys import router as keys_router
from gateway.admin.limits import router as limits_router
from gateway.admin.models import router as models_router
from gateway.admin.organization import router as organization_router
from gateway.admin.prices import router as prices_router
from gateway.admin.reconciliation import router as reconciliation_router
from gateway.admin.tenants import router as tenants_router
from gateway.admin.tiers import router as tiers_router
from gateway.admin.usage import admin_router as admin_usage_router
from gateway.admin.usage import router as usage_router
from gateway.admin.webhooks import router as webhooks_router
from gateway.admin.workers import router as workers_router
from gateway.artifacts.references import References, check_root
from gateway.artifacts.store import ArtifactStore
from gateway.billing.alerts import BudgetAlerts
from gateway.billing.invoicing import Invoicing
from gateway.billing.ledger import UsageLedger
from gateway.billing.reconciliation import Reconciler
from gateway.billing.rerating import Rerating
from gateway.clock import utc_now
from gateway.dashboard.routes import dashboard_router
from gateway.database import Sessions, check_exists, open_sessions
from gateway.domain.catalog import CatalogCache
from gateway.domain.keys.keyring import Keyring
from gateway.domain.keys.service import bootstrap_admin_key
from gateway.domain.models.service import declare_model
from gateway.domain.webhooks.delivery import WebhookSender
from gateway.http.body_limit import BodyLimit
from gateway.http.cors import allow_origins
from gateway.http.errors import GatewayError
from gateway.http.openapi import ANSWER_HEADERS, install_openapi
from gateway.http.outbound import Outbound
from gateway.http.policy import RequestPolicy
from gateway.http.rendering import install_error_handlers
from gateway.http.request_ids import RequestIds
from gateway.inference.dry_run import router as route_router
from gateway.inference.embeddings.handler import EMBEDDING, EMBEDDINGS_PATH
from gateway.inference.handler import COMPLETION, make_endpoint
from gateway.inference.models import router as public_models_router
from gateway.inference.overflow import overflow_account
from gateway.inference.probes import router as probes_router
from gateway.inference.tokens import router as tokens_router
from gateway.inference.validate import CHAT_PATH, TEXT_PATH
from gateway.limits.leases import LeaseKeeper
from gateway.limits.limiter import open_limiter
from gateway.metering.backlog import Backlog
from gateway.metering.outbox import Outbox, adopt_orphans
from gateway.metering.queries import UsageQueries
from gateway.metering.refusals import RefusalCounter
from gateway.metering.room import OutboxRoom
from gateway.metrics import Metrics
from gateway.overload import OverloadGuard
from gateway.redis_client import AWAY, connect_redis
from gateway.services import AddSiblings, Services, without_siblings
from gateway.settings import ConfigError, GatewaySettings
from gateway.tracing import open_tracing
from gateway.upstream.adapter_keeper import AdapterKeeper
from gateway.upstream.bundles import BundleStore
from gateway.upstream.client import WorkerClient
from gateway.upstream.configured_members import FixedMembers
from gateway.upstream.conversations import Conversations
from gateway.upstream.deep_checks import DeepChecks
from gateway.upstream.gates import watch_gates
from gateway.upstream.registry import READ_DEADLINE_S, Registry
from protocol.object_store import BadStoreUrl
from router.complexity import shipped_weights
from router.errors import BadWeights
from router.gate import Gates
from router.saturation import Thresholds
from router.weights import Weights, read_weights

Loop = Coroutine[Any, Any, None]


@dataclass(frozen=True)
class Running:
    """The services, and the loops that must run beside the server for as long as it does."""

    services: Services
    loops: Callable[[], list[Loop]]


@asynccontextmanager
async def open_services(
    settings: GatewaySettings,
    *,
    is_draining: Callable[[], bool],
    add_siblings: AddSiblings = without_siblings,
) -> AsyncIterator[Running]:
    """Open everything that `settings` names. Raises ConfigError naming the field."""
    incarnation = uuid4().hex
    weights = _read_weights(settings.router_weights, "TIERGATE_ROUTER_WEIGHTS") or shipped_weights()
    shadow_weights = _read_weights(settings.router_shadow_weights, "TIERGATE_ROUTER_SHADOW_WEIGHTS")
    async with AsyncExitStack() as stack:
        try:
            tracing = await stack.enter_async_context(open_tracing(settings.otlp_endpoint, ratio=settings.trace_ratio))
        except ImportError as error:
            raise ConfigError(f"TIERGATE_OTLP_ENDPOINT: the extra `otel` is not installed ({error})") from error
        sessions = await stack.enter_async_context(open_sessions(settings.sql_url))
        catalog = CatalogCache(sessions)
        await _prepare_database(settings, sessions, catalog)
        await asyncio.to_thread(adopt_orphans, settings.data_dir)
        room = OutboxRoom(
            settings.data_dir, max_bytes=settings.outbox_max_bytes, min_free_bytes=settings.outbox_min_free_bytes
        )
        refusals = RefusalCounter()
        outbox = await stack.enter_async_context(Outbox(settings.data_dir, incarnation, refusals=refusals, room=room))
        await room.measure()
        usage = UsageQueries(settings.clickhouse_url)
        stack.push_async_callback(usage.close)
        redis = connect_redis(settings.redis_url, deadline_s=READ_DEADLINE_S)
        stack.push_async_callback(redis.aclose)
        ledger = UsageLedger(
            usage,
            data_dir=settings.data_dir,
            has_clickhouse=settings.clickhouse_url is not None,
            pools={overflow_account(name): name for name in settings.overflow_pools},
        )
        limiter = await stack.enter_async_context(
            open_limiter(
                settings.redis_url, ledger, deadline_s=settings.redis_deadline_ms / 1000, incarnation=incarnation
            )
        )
        leases = LeaseKeeper(limiter)
        outbound = Outbound(allowed_private=settings.outbound_private_networks)
        stack.push_async_callback(outbound.close)
        pepper = settings.key_pepper.get_secret_value()
        webhooks = WebhookSender(sessions, outbound, pepper=pepper, holder=incarnation)
        alerts = BudgetAlerts(sessions, catalog, ledger, holder=incarnation)
        workers = await stack.enter_async_context(WorkerClient(settings))
        fixed = FixedMembers(settings, workers)
        registry = Registry(redis, catalog, fixed, settings)
        deep_checks = DeepChecks(registry, workers)
        bundles = BundleStore(settings, registry, workers)
        artifacts, references = _artifacts(settings)
        adapters = AdapterKeeper(
            sessions,
            artifacts,
            catalog,
            registry,
            workers,
            holder=incarnation,
            request_timeout_s=settings.request_timeout_s,
        )
        keyring = Keyring(sessions, pepper=settings.key_pepper.get_secret_value())
        metrics = Metrics()
        reconciler = Reconciler(sessions, usage, registry, workers, metrics)
        gates = Gates(Thresholds(max_waiting=settings.saturated_waiting, min_free_kv=settings.saturated_free_kv))
        overload = OverloadGuard(metrics)
        services = Services(
            settings=settings,
            sessions=sessions,
            keyring=keyring,
            catalog=catalog,
            limiter=limiter,
            registry=registry,
            gates=gates,
            conversations=Conversations(limiter.redis, is_away=lambda: limiter.is_local),
            bundles=bundles,
            artifacts=artifacts,
            references=references,
            router_weights=weights,
            shadow_weights=shadow_weights,
            workers=workers,
            outbox=outbox,
            refusals=refusals,
            reconciler=reconciler,
            usage=usage,
            rerating=Rerating(usage, settings.clickhouse_url),
            invoicing=Invoicing(sessions, settings.clickhouse_url),
            outbound=outbound,
            backlog=Backlog(settings.data_dir),
            room=room,
            metrics=metrics,
            overload=overload,
            tracing=tracing,
            is_draining=is_draining,
            add_siblings=add_siblings,
        )
        await fixed.check()
        await registry.refresh()
        await bundles.fetch_missing()
        yield Running(
            services,
            lambda: [
                overload.beat_forever(),
                keyring.refresh_forever(),
                catalog.refresh_forever(),
                limiter.run_forever(),
                reconciler.run_forever(),
                limiter.settlements.drain_forever(),
                leases.keep_forever(),
                webhooks.send_forever(),
                alerts.check_forever(),
                fixed.check_forever(),
                registry.refresh_forever(),
                watch_gates(gates, registry, metrics),
                deep_checks.check_forever(),
                bundles.fetch_forever(),
                adapters.keep_forever(),
                workers.sweep_forever(),
                outbox.keep_forever(),
                room.keep_forever(),
            ],
        )
        await limiter.settlements.drain_once()
        with contextlib.suppress(*AWAY):
            await leases.leave()


def _read_weights(path: Path | None, variable: str) -> Weights | None:
    if path is None:
        return None
    try:
        return read_weights(path.read_bytes())
    except (OSError, BadWeights) as error:
        raise ConfigError(f"{variable}: {path}: {error}") from error


def _artifacts(settings: GatewaySettings) -> tuple[ArtifactStore, References]:
    try:
        store = ArtifactStore(settings.store_url, max_weights_bytes=settings.max_adapter_bytes)
    except BadStoreUrl as error:
        raise ConfigError(f"TIERGATE_ARTIFACTS_URL: {error}") from error
    try:
        for root in settings.adapter_roots:
            check_root(root)
    except BadStoreUrl as error:
        raise ConfigError(f"TIERGATE_ADAPTER_ROOTS: {error}") from error
    return store, References(settings.adapter_roots)


def create_asgi(services: Services) -> ASGIApp:
    """The whole application, with a short way to completions: FastAPI's layers would be a tenth of their cost."""
    app, inference = create_app(services), _inference(services)

    # Plain functions that return coroutines: each coroutine around another one is passed at every resumption.
    def dispatch(scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        is_post = scope["type"] == "http" and scope["method"] == "POST"
        return (inference.get(scope["path"], app) if is_post else app)(scope, receive, send)

    return allow_origins(dispatch, services.settings.cors_origins, exposed=(*ANSWER_HEADERS, "retry-after"))


def _inference(services: Services) -> dict[str, ASGIApp]:
    """What models compute, by path."""
    completions, embeddings = make_endpoint(services, COMPLETION), make_endpoint(services, EMBEDDING)
    return {CHAT_PATH: completions, TEXT_PATH: completions, EMBEDDINGS_PATH: embeddings}


def create_app(services: Services) -> FastAPI:
    """Everything but what models compute."""
    app = FastAPI(
        title="tiergate",
        description="OpenAI-compatible gateway",
        version=version("tiergate"),
        docs_url="/docs",
        redoc_url=None,
        # Such a redirect would be built from the Host header, which the client writes.
        redirect_slashes=False,
        # A body without a Content-Type is taken for JSON: no browser can add the key to another site's request.
        strict_content_type=False,
    )
    app.state.services = services
    install_openapi(app)
    app.add_middleware(
        BodyLimit,
        max_body_bytes=services.settings.max_body_bytes,
        max_form_bytes=services.settings.max_adapter_bytes + FORM_OVERHEAD_BYTES,
        takes_form=is_adapter_upload,
    )
    app.add_middleware(
        RequestPolicy,
        routes=lambda: app.router.routes,
        trusted_proxies=services.settings.trusted_proxies,
        takes_form=is_adapter_upload,
    )
    app.add_middleware(RequestIds, count=services.metrics.control_requests.add)
    install_error_handlers(app)
    for path, endpoint in _inference(services).items():
        # Reached only with another method, which gets its 405 here.
        app.router.routes.append(Route(path, endpoint, methods=["POST"]))
    dashboard = dashboard_router(pepper=services.settings.key_pepper.get_secret_value())
    data_plane = public_models_router, tokens_router, route_router, usage_router, limits_router, organization_router
    for router in (probes_router, *data_plane, _admin_router(), dashboard):
        app.include_router(router)
    return app


def _admin_router() -> APIRouter:
    admin = APIRouter(prefix="/admin/v1")
    for router in (
        tenants_router,
        keys_router,
        tiers_router,
        models_router,
        adapters_router,
        prices_router,
        invoices_router,
        credits_router,
        billing_accounts_router,
        webhooks_router,
        workers_router,
        admin_usage_router,
        reconciliation_router,
        audit_router,
    ):
        admin.include_router(router)
    return admin


async def _prepare_database(settings: GatewaySettings, sessions: Sessions, catalog: CatalogCache) -> None:
    """The first key of a new database, and the models that the configuration declares."""
    try:
        check_exists(settings.sql_url)
        await catalog.reload()
        if settings.bootstrap_admin_key is not None:
            await bootstrap_admin_key(
                sessions,
                settings.bootstrap_admin_key.get_secret_value(),
                pepper=settings.key_pepper.get_secret_value(),
                now=utc_now(),
            )
        for name, pool in settings.all_pools.items():
            await declare_model(
                sessions,
                None,
                model_id=pool.model,
                pool=name,
                context_window=pool.context_window,
                kind=pool.kind,
                now=utc_now(),
            )
        await catalog.reload()
    except GatewayError as error:
        # A name that another model, pool or adapter has.
        raise ConfigError(f"pools: {error}") from error
    except (SQLAlchemyError, OSError, TimeoutError) as error:
        reason = str(error).splitlines()[0] or type(error).__name__
        raise ConfigError(f"TIERGATE_DATABASE_URL: {reason} (is it up, and did `tiergate migrate` run?)") from error
