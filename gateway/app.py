"""The ASGI application with all its routes."""

from collections.abc import Awaitable
from importlib.metadata import version

from fastapi import APIRouter, FastAPI
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.admin import adapters as adapter_routes
from gateway.admin.adapters import is_adapter_upload
from gateway.admin.adapters import router as adapters_router
from gateway.admin.answer_caching import router as answer_caching_router
from gateway.admin.audit import router as audit_router
from gateway.admin.billing_accounts import router as billing_accounts_router
from gateway.admin.erasures import router as erasures_router
from gateway.admin.guardrails import router as guardrails_router
from gateway.admin.idempotent_posts import IdempotentPosts
from gateway.admin.invoices import credits_router
from gateway.admin.invoices import router as invoices_router
from gateway.admin.keys import router as keys_router
from gateway.admin.limits import router as limits_router
from gateway.admin.models import router as models_router
from gateway.admin.organization import router as organization_router
from gateway.admin.prices import router as prices_router
from gateway.admin.reconciliation import router as reconciliation_router
from gateway.admin.sessions import router as session_policies_router
from gateway.admin.tenants import router as tenants_router
from gateway.admin.tiers import router as tiers_router
from gateway.admin.tools import router as tools_router
from gateway.admin.usage import admin_router as admin_usage_router
from gateway.admin.usage import router as usage_router
from gateway.admin.users import router as users_router
from gateway.admin.webhooks import router as webhooks_router
from gateway.admin.workers import router as workers_router
from gateway.dashboard.adapter_forms import is_console_upload
from gateway.dashboard.front_page import front_page
from gateway.dashboard.routes import dashboard_router
from gateway.dashboard.too_large import is_console, too_large_page
from gateway.http.body_limit import BodyLimit
from gateway.http.cors import allow_origins
from gateway.http.openapi import ANSWER_HEADERS, install_openapi
from gateway.http.policy import RequestPolicy
from gateway.http.rendering import error_response, install_error_handlers
from gateway.http.request_ids import RequestIds
from gateway.inference import files as file_routes
from gateway.inference.batches.routes import router as batches_router
from gateway.inference.dry_run import router as route_router
from gateway.inference.embeddings.handler import EMBEDDING, EMBEDDINGS_PATH
from gateway.inference.handler import COMPLETION, RESPONSE, make_endpoint
from gateway.inference.models import router as public_models_router
from gateway.inference.probes import router as probes_router
from gateway.inference.responses.request import RESPONSES_PATH
from gateway.inference.responses.routes import router as responses_router
from gateway.inference.session.routes import router as sessions_router
from gateway.inference.tokens import router as tokens_router
from gateway.inference.validate import CHAT_PATH, TEXT_PATH
from gateway.services import Services
from gateway.settings import GatewaySettings


def create_asgi(services: Services) -> ASGIApp:
    """The whole application. Inference requests bypass FastAPI, whose layers would be a tenth of their cost."""
    app, inference = create_app(services), _inference(services)

    # A plain function that returns a coroutine: each wrapping coroutine would be traversed at every resumption.
    def dispatch(scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        is_post = scope["type"] == "http" and scope["method"] == "POST"
        return (inference.get(scope["path"], app) if is_post else app)(scope, receive, send)

    return allow_origins(
        dispatch, services.settings.cors_origins, exposed=(*ANSWER_HEADERS, "retry-after", "x-should-retry", "etag")
    )


def _inference(services: Services) -> dict[str, ASGIApp]:
    """Path -> endpoint of the inference APIs."""
    completions, embeddings = make_endpoint(services, COMPLETION), make_endpoint(services, EMBEDDING)
    responses = make_endpoint(services, RESPONSE)
    return {CHAT_PATH: completions, TEXT_PATH: completions, EMBEDDINGS_PATH: embeddings, RESPONSES_PATH: responses}


def create_app(services: Services) -> FastAPI:
    """The application without the inference endpoints, which `create_asgi` adds."""
    app = FastAPI(
        title="tiergate",
        description="OpenAI-compatible gateway",
        version=version("tiergate"),
        docs_url="/docs",
        redoc_url=None,
        # The redirect would be built from the Host header, which the client controls.
        redirect_slashes=False,
        # Take a body without Content-Type for JSON. That is safe: a browser cannot add the key to a cross-site request.
        strict_content_type=False,
    )
    app.state.services = services
    install_openapi(app)
    app.add_middleware(
        IdempotentPosts,
        services=services,
        takes_form=lambda scope: _max_form_bytes(scope, services.settings) is not None,
    )
    app.add_middleware(
        BodyLimit,
        max_body_bytes=services.settings.max_body_bytes,
        max_form_bytes=lambda scope: _max_form_bytes(scope, services.settings),
        refuse=lambda scope, error: too_large_page(error) if is_console(scope) else error_response(error),
    )
    app.add_middleware(
        RequestPolicy,
        routes=lambda: app.router.routes,
        trusted_proxies=services.settings.trusted_proxies,
        takes_form=lambda scope: _max_form_bytes(scope, services.settings) is not None,
    )
    app.add_middleware(RequestIds, count=services.metrics.control_requests.add)
    install_error_handlers(app)
    app.router.routes.append(Route("/", front_page, methods=["GET"]))
    for path, endpoint in _inference(services).items():
        # Reached only with other methods, which get a 405 here.
        app.router.routes.append(Route(path, endpoint, methods=["POST"]))
    dashboard = dashboard_router(peppers=services.settings.peppers)
    data_plane = (
        *(public_models_router, tokens_router, route_router, usage_router, limits_router, organization_router),
        *(file_routes.router, batches_router),
    )
    for router in (probes_router, *data_plane, sessions_router, responses_router, _admin_router(), dashboard):
        app.include_router(router)
    return app


def _max_form_bytes(scope: Scope, settings: GatewaySettings) -> int | None:
    """The size limit of a file upload form; None if the route takes no files."""
    if is_adapter_upload(scope) or is_console_upload(scope):
        return settings.max_adapter_bytes + adapter_routes.FORM_OVERHEAD_BYTES
    if file_routes.is_file_upload(scope):
        return settings.max_file_bytes + file_routes.FORM_OVERHEAD_BYTES
    return None


def _admin_router() -> APIRouter:
    admin = APIRouter(prefix="/admin/v1")
    for router in (
        tenants_router,
        users_router,
        session_policies_router,
        answer_caching_router,
        keys_router,
        tiers_router,
        models_router,
        adapters_router,
        prices_router,
        invoices_router,
        credits_router,
        billing_accounts_router,
        tools_router,
        guardrails_router,
        webhooks_router,
        workers_router,
        admin_usage_router,
        reconciliation_router,
        erasures_router,
        audit_router,
    ):
        admin.include_router(router)
    return admin
