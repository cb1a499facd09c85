"""Opens every resource that the settings name, once, and closes them in order."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from uuid import uuid4

from sqlalchemy.exc import SQLAlchemyError

from gateway.answer_cache.store import AnswerCache
from gateway.artifacts.files import FileStore
from gateway.artifacts.references import References, check_root
from gateway.artifacts.store import ArtifactStore
from gateway.batches.execution import Execution
from gateway.batches.file_keeper import FileKeeper
from gateway.batches.pace import Pace
from gateway.batches.runner import BatchRunner
from gateway.billing.alerts import BudgetAlerts
from gateway.billing.invoicing import Invoicing
from gateway.billing.ledger import UsageLedger
from gateway.billing.reconciliation import Reconciler
from gateway.billing.rerating import Rerating
from gateway.clock import utc_now
from gateway.database import Sessions, check_exists, open_sessions
from gateway.domain.catalog import CatalogCache
from gateway.domain.keys.keyring import Keyring
from gateway.domain.keys.last_used import LastUsed
from gateway.domain.keys.rehashing import Rehasher
from gateway.domain.keys.service import bootstrap_admin_key
from gateway.domain.models.service import declare_model
from gateway.domain.notices import Notices
from gateway.domain.peppers.origin import note_origin
from gateway.domain.peppers.standing import warn_of_missing
from gateway.domain.tools.tool_book import ToolBook
from gateway.domain.webhooks.delivery import WebhookSender
from gateway.erasure.job import ErasureRunner
from gateway.erasure.retention import Retention
from gateway.erasure.subject import Stores
from gateway.guardrails.checking import MAX_CHECKS, Guard
from gateway.http.errors import GatewayError
from gateway.http.outbound import Outbound
from gateway.idempotency.store import AnswerStore
from gateway.inference.batches.line import LinesHere
from gateway.inference.overflow import overflow_account
from gateway.inference.session.summaries import summarize_forever
from gateway.limits.leases import LeaseKeeper
from gateway.limits.limiter import open_limiter
from gateway.metering.adoption import adopt_orphans
from gateway.metering.backlog import Backlog
from gateway.metering.outbox import Outbox
from gateway.metering.queries import UsageQueries
from gateway.metering.refusals import RefusalCounter
from gateway.metering.room import OutboxRoom
from gateway.metrics import Metrics
from gateway.oidc.client import OidcClient
from gateway.overload import OverloadGuard
from gateway.redis_client import AWAY, connect_redis
from gateway.services import AddSiblings, Services, without_siblings
from gateway.sessions.conversation import Conversation, Meta
from gateway.sessions.responses import ResponseMeta, StoredResponse
from gateway.sessions.store import Store, Terms, open_pipeline
from gateway.sessions.summaries import SummaryQueue
from gateway.settings import ConfigError, GatewaySettings
from gateway.tools.caller import ToolCaller
from gateway.tools.trail import AuditTrail
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
    """The services, and the loops that must run beside the server as long as it runs."""

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
        peppers = settings.peppers
        sessions = await stack.enter_async_context(open_sessions(settings.sql_url, peppers=peppers))
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
            written=outbox.written,
            pools={overflow_account(name): name for name in settings.overflow_pools},
        )
        stack.callback(ledger.close)
        limiter = await stack.enter_async_context(
            open_limiter(
                settings.redis_url, ledger, deadline_s=settings.redis_deadline_ms / 1000, incarnation=incarnation
            )
        )
        leases = LeaseKeeper(limiter, data_dir=settings.data_dir)
        session_redis = open_pipeline(settings.redis_url)
        stack.callback(session_redis.close)
        session_terms = Terms(
            kind="ctx", noun="session", ttl_s=settings.session_ttl_s, max_number=settings.sessions_per_tenant
        )
        session_store = Store(session_redis, session_terms, meta=Meta, value=Conversation)
        response_ttl_s = settings.response_ttl_s or settings.session_ttl_s
        response_terms = replace(session_terms, kind="resp", noun="response", ttl_s=response_ttl_s)
        response_store = Store(session_redis, response_terms, meta=ResponseMeta, value=StoredResponse)
        outbound = Outbound(allowed_private=settings.outbound_private_networks)
        stack.push_async_callback(outbound.close)
        oidc = None if settings.oidc_issuer is None else OidcClient(settings, settings.oidc_issuer)
        if oidc is not None:
            stack.push_async_callback(oidc.close)
        tool_outbound = Outbound(allowed_private=settings.outbound_private_networks if settings.tool_hosts else ())
        stack.push_async_callback(tool_outbound.close)
        guardrail_outbound = Outbound(allowed_private=settings.outbound_private_networks, max_connections=MAX_CHECKS)
        stack.push_async_callback(guardrail_outbound.close)
        webhooks = WebhookSender(sessions, outbound, peppers=peppers, holder=incarnation)
        alerts = BudgetAlerts(sessions, catalog, ledger, holder=incarnation)
        workers = await stack.enter_async_context(WorkerClient(settings))
        fixed = FixedMembers(settings, workers)
        registry = Registry(redis, catalog, fixed, settings)
        deep_checks = DeepChecks(registry, workers)
        bundles = BundleStore(settings, registry, workers)
        artifacts, references, files = _artifacts(settings)
        adapters = AdapterKeeper(
            sessions,
            artifacts,
            catalog,
            registry,
            workers,
            holder=incarnation,
            request_timeout_s=settings.request_timeout_s,
        )
        keyring = Keyring(sessions, peppers=peppers)
        rehasher = Rehasher(sessions, keyring.take_outdated)
        last_used = LastUsed(sessions, keyring)
        notices = Notices(redis, keyring, catalog, sender=incarnation, redraw=registry.redraw)
        metrics = Metrics()
        trail = AuditTrail(sessions, metrics, shows_arguments=settings.tool_audit_arguments)
        tools = ToolCaller(tool_outbound, trail, metrics, peppers=peppers, allowed_hosts=settings.tool_hosts)
        reconciler = Reconciler(sessions, usage, registry, workers, metrics)
        gates = Gates(Thresholds(max_waiting=settings.saturated_waiting, min_free_kv=settings.saturated_free_kv))
        overload = OverloadGuard(metrics)
        answers = AnswerStore(limiter.redis, peppers=peppers, is_away=lambda: limiter.is_local)
        erasure_stores = Stores(
            sessions=sessions,
            redis=redis,
            files=files,
            artifacts=artifacts,
            session_store=session_store,
            response_store=response_store,
            registry=registry,
            workers=workers,
            clickhouse_url=settings.clickhouse_url,
            sql_url=settings.sql_url,
            data_dir=settings.data_dir,
            peppers=peppers,
        )
        services = Services(
            settings=settings,
            sessions=sessions,
            keyring=keyring,
            catalog=catalog,
            notices=notices,
            limiter=limiter,
            registry=registry,
            gates=gates,
            answers=answers,
            answer_cache=AnswerCache(limiter.redis, peppers=peppers, is_away=lambda: limiter.is_local),
            conversations=Conversations(limiter.redis, is_away=lambda: limiter.is_local),
            bundles=bundles,
            artifacts=artifacts,
            references=references,
            files=files,
            router_weights=weights,
            shadow_weights=shadow_weights,
            workers=workers,
            outbox=outbox,
            refusals=refusals,
            reconciler=reconciler,
            usage=usage,
            rerating=Rerating(usage, settings.clickhouse_url),
            invoicing=Invoicing(sessions, settings.clickhouse_url),
            oidc=oidc,
            outbound=outbound,
            tool_outbound=tool_outbound,
            tool_book=ToolBook(sessions),
            tools=tools,
            erasure_stores=erasure_stores,
            guard=Guard(guardrail_outbound, metrics, peppers=peppers),
            session_store=session_store,
            response_store=response_store,
            summaries=SummaryQueue(),
            backlog=Backlog(settings.data_dir),
            room=room,
            metrics=metrics,
            overload=overload,
            tracing=tracing,
            is_draining=is_draining,
            add_siblings=add_siblings,
        )
        await session_redis.connect()
        lines = LinesHere(services)
        execution = Execution(
            sessions,
            files,
            outbox,
            lines,
            Pace(lines, concurrency=settings.batch_concurrency),
            holder=incarnation,
            max_line_bytes=settings.max_body_bytes,
        )
        batches = BatchRunner(sessions, execution, holder=incarnation)
        file_keeper = FileKeeper(sessions, files, holder=incarnation)
        retention = Retention(
            sessions,
            audit_contents_days=settings.audit_contents_kept_days,
            batches_days=settings.batches_kept_days,
            holder=incarnation,
        )
        erasures = ErasureRunner(erasure_stores, holder=incarnation, reload=services.reload)
        await fixed.check()
        await registry.refresh()
        await bundles.fetch_missing()
        yield Running(
            services,
            lambda: [
                overload.beat_forever(),
                keyring.refresh_forever(),
                last_used.write_forever(),
                rehasher.write_forever(),
                notices.follow_forever(),
                catalog.refresh_forever(),
                limiter.run_forever(),
                reconciler.run_forever(),
                limiter.settlements.drain_forever(),
                answers.renew_forever(),
                leases.keep_forever(),
                webhooks.send_forever(),
                alerts.check_forever(),
                trail.write_forever(),
                session_redis.keep_forever(),
                session_store.renew_forever(),
                response_store.renew_forever(),
                summarize_forever(services),
                fixed.check_forever(),
                registry.refresh_forever(),
                watch_gates(gates, registry, metrics),
                deep_checks.check_forever(),
                bundles.fetch_forever(),
                adapters.keep_forever(),
                workers.sweep_forever(),
                batches.run_forever(),
                file_keeper.tidy_forever(),
                erasures.run_forever(),
                retention.keep_forever(),
                outbox.keep_forever(),
                room.keep_forever(),
            ],
        )
        await batches.leave()
        with contextlib.suppress(SQLAlchemyError, OSError):
            await trail.write()
            await last_used.write()
            await rehasher.write()
        await limiter.settlements.drain()
        with contextlib.suppress(*AWAY):
            await leases.leave()


def _read_weights(path: Path | None, variable: str) -> Weights | None:
    if path is None:
        return None
    try:
        return read_weights(path.read_bytes())
    except (OSError, BadWeights) as error:
        raise ConfigError(f"{variable}: {path}: {error}") from error


def _artifacts(settings: GatewaySettings) -> tuple[ArtifactStore, References, FileStore]:
    try:
        files = FileStore(settings.store_url, max_bytes=settings.max_file_bytes)
        store = ArtifactStore(settings.store_url, max_weights_bytes=settings.max_adapter_bytes)
    except BadStoreUrl as error:
        raise ConfigError(f"TIERGATE_ARTIFACTS_URL: {error}") from error
    try:
        for root in settings.adapter_roots:
            check_root(root)
    except BadStoreUrl as error:
        raise ConfigError(f"TIERGATE_ADAPTER_ROOTS: {error}") from error
    return store, References(settings.adapter_roots), files


async def _prepare_database(settings: GatewaySettings, sessions: Sessions, catalog: CatalogCache) -> None:
    """Create the first key of a new database, and declare the configured models. Raises ConfigError."""
    try:
        check_exists(settings.sql_url)
        await catalog.reload()
        if settings.bootstrap_admin_key is not None:
            await bootstrap_admin_key(
                sessions,
                settings.bootstrap_admin_key.get_secret_value(),
                pepper=settings.peppers.current,
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
        await note_origin(sessions, settings.peppers)
        await warn_of_missing(sessions, settings.peppers, now=utc_now())
        await catalog.reload()
    except GatewayError as error:
        # The name is taken by another model, pool or adapter.
        raise ConfigError(f"pools: {error}") from error
    except (SQLAlchemyError, OSError, TimeoutError) as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise ConfigError(f"TIERGATE_DATABASE_URL: {reason} (is it up, and did `tiergate migrate` run?)") from error
