"""The worker's routes."""

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.routing import Route

from protocol.errors import ProtocolError
from worker.server import about, adapters, embeddings, health, ledger, tokenize
from worker.server.completions import CompletionsEndpoint
from worker.server.errors import KeyGate, on_bug, on_http_error, on_protocol_error
from worker.server.health import Readiness
from worker.server.model_list import model_card, model_list
from worker.server.replica import Replica


def create_app(replica: Replica, readiness: Readiness) -> Starlette:
    routes = [
        Route("/v1/chat/completions", CompletionsEndpoint(replica, is_chat=True), methods=["POST"]),
        Route("/v1/completions", CompletionsEndpoint(replica, is_chat=False), methods=["POST"]),
        Route("/v1/embeddings", embeddings.embeddings, methods=["POST"]),
        Route("/v1/models", model_list),
        Route("/v1/models/{model:path}", model_card),
        Route("/version", about.version),
        Route("/tokenizer_info", about.tokenizer_info),
        Route("/v1/load_lora_adapter", adapters.load_adapter, methods=["POST"]),
        Route("/v1/unload_lora_adapter", adapters.unload_adapter, methods=["POST"]),
        Route("/tokenizer", tokenize.serve_bundle),
        Route("/health", health.health),
        Route("/ready", health.ready),
        Route("/metrics", health.metrics),
        Route("/load", health.load),
        Route("/ledger", ledger.ledger),
    ]
    for prefix in ("", "/v1"):
        routes.append(Route(f"{prefix}/tokenize", tokenize.tokenize, methods=["POST"]))
        routes.append(Route(f"{prefix}/detokenize", tokenize.detokenize, methods=["POST"]))
    app = Starlette(
        routes=routes,
        middleware=[
            Middleware(
                KeyGate,
                keys=replica.keys,
                metrics_key=replica.metrics_key,
                load=replica.load_header,
                is_unix=replica.is_unix,
            )
        ],
        exception_handlers={ProtocolError: on_protocol_error, HTTPException: on_http_error, Exception: on_bug},
    )
    app.router.redirect_slashes = False
    app.state.replica = replica
    app.state.readiness = readiness
    return app
