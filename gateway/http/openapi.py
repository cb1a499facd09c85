"""The OpenAPI document: FastAPI's own for the admin plane, and the data plane's from the wire types themselves."""

from typing import Any

import msgspec
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from protocol.embeddings import EmbeddingsRequest, EmbeddingsResponse
from protocol.errors import ErrorBody
from protocol.requests import (
    ChatCompletionRequest,
    CompletionRequest,
    DetokenizeRequest,
    PlatformChatRequest,
    TokenizeRequest,
)
from protocol.responses import ChatCompletion, ChatCompletionChunk, Completion, ModelCard, ModelList
from protocol.responses_api import InputItems, ResponsesRequest
from protocol.route import RouteExplanation

Json = dict[str, Any]

_TYPES = (
    ChatCompletionRequest,
    PlatformChatRequest,
    ChatCompletion,
    ChatCompletionChunk,
    CompletionRequest,
    Completion,
    ResponsesRequest,
    InputItems,
    EmbeddingsRequest,
    EmbeddingsResponse,
    TokenizeRequest,
    DetokenizeRequest,
    ModelCard,
    ModelList,
    RouteExplanation,
    ErrorBody,
)
_REF = "#/components/schemas/"
_PUBLIC = ("/health", "/ready", "/metrics", "/dashboard")
ANSWER_HEADERS = {
    "x-request-id": "ours; it finds the request in usage and in logs",
    "x-tiergate-model": "the model that served it",
    "x-tiergate-pool": "the pool that served it",
    "x-tiergate-adapter": "the adapter, if any",
    "x-tiergate-route": "why: requested, simple, complex, warm, saturated, unavailable, cached",
    "x-tiergate-cache": "`hit` or `miss`, of requests that look into the cache of answers",
    "age": "of an answer from the cache, in seconds",
    "x-tiergate-complexity": "0 to 1, as the router scored the prompt; not where the request names its model",
    "x-tiergate-limiter": "`local` while Redis is away",
    "x-tiergate-tool-rounds": "how many rounds a whole answer with `server_tools` took",
    "x-tiergate-guardrail": "`skipped` where a guardrail that fails open could not check",
    "x-tiergate-session-messages": "how many messages of the session stand before the request's own",
    "x-ratelimit-limit-requests": "requests a minute",
    "x-ratelimit-remaining-requests": "requests left in this window",
    "x-ratelimit-reset-requests": "until the window is empty, as `12ms` or `6m0s`",
    "x-ratelimit-limit-tokens": "tokens a minute",
    "x-ratelimit-remaining-tokens": "tokens left in this window",
    "x-ratelimit-reset-tokens": "until the window is empty",
}
_ERRORS = {
    "400": "the body is wrong; `param` names the field",
    "401": "no key, a bad key or a revoked one",
    "403": "the key or the tier may not do this",
    "404": "no such model",
    "413": "the body is over the limit",
    "429": "a limit is reached; `code` names it, `retry-after` tells when to try again",
    "503": "saturated; `retry-after` tells when to try again",
}


def install_openapi(app: FastAPI) -> None:
    app.openapi = lambda: _document(app)  # type: ignore[method-assign]


def _document(app: FastAPI) -> Json:
    if app.openapi_schema is None:
        document = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
        components = document.setdefault("components", {})
        _, schemas = msgspec.json.schema_components(_TYPES, ref_template=_REF + "{name}")
        _describe_input(schemas)
        components["schemas"] = components.get("schemas", {}) | schemas
        components["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer", "description": "an API key"}}
        document["paths"] = _data_plane() | document["paths"]
        _describe_bodies(document["paths"])
        for path, operations in document["paths"].items():
            _secure(path, operations)
        app.openapi_schema = document
    return app.openapi_schema


def _data_plane() -> Json:
    """The endpoints that are no FastAPI routes."""
    return {
        "/v1/chat/completions": {"post": _completion_operation("Chat completion", "Chat", "PlatformChatRequest")},
        "/v1/completions": {"post": _completion_operation("Text completion", "", "CompletionRequest")},
        "/v1/embeddings": {"post": _embeddings_operation()},
        "/v1/responses": {"post": _responses_operation()},
    }


def _completion_operation(summary: str, kind: str, body: str) -> Json:
    answer = {
        "description": "The answer; with `stream: true` server-sent events that end with `[DONE]`.",
        "content": {
            "application/json": {"schema": {"$ref": f"{_REF}{kind}Completion"}},
            "text/event-stream": {"schema": {"$ref": f"{_REF}{kind}Completion{'Chunk' if kind else ''}"}},
        },
    }
    model = "`model` is `auto`, a pool, a model's id or an adapter's name."
    return _operation("completions", summary, model, body, answer)


def _embeddings_operation() -> Json:
    answer = {
        "description": "One vector of length 1 for each text, in order.",
        "content": {"application/json": {"schema": {"$ref": f"{_REF}EmbeddingsResponse"}}},
    }
    model = "`model` is a pool, a model's id or the name of an adapter of one model; no other model stands in for it."
    return _operation("embeddings", "Embeddings", model, "EmbeddingsRequest", answer)


def _responses_operation() -> Json:
    answer = {
        "description": "The response; with `stream: true` OpenAI's typed events.",
        "content": {"application/json": {"schema": {"type": "object"}}, "text/event-stream": {"schema": {}}},
    }
    return _operation("responses", "Response", "See docs/responses.md.", "ResponsesRequest", answer)


def _operation(tag: str, summary: str, description: str, body: str, answer: Json) -> Json:
    headers = {name: {"description": text, "schema": {"type": "string"}} for name, text in ANSWER_HEADERS.items()}
    errors = {status: _error(text) for status, text in _ERRORS.items()}
    return {
        "tags": [tag],
        "summary": summary,
        "description": description,
        "parameters": [
            {
                "name": "X-Client-Request-Id",
                "in": "header",
                "required": False,
                "description": "your own id, kept with the usage event",
                "schema": {"type": "string", "maxLength": 128},
            },
            {
                "name": "Idempotency-Key",
                "in": "header",
                "required": False,
                "description": "what is sent again with it is carried out and billed once (docs/idempotency.md)",
                "schema": {"type": "string", "pattern": "^[ -~]{1,255}$"},
            },
            *_session_parameter(tag),
        ],
        "requestBody": _body(body),
        "responses": {"200": answer | {"headers": headers}} | errors,
    }


def _session_parameter(tag: str) -> list[Json]:
    if tag != "completions":
        return []
    schema = {"type": "string", "pattern": "^[A-Za-z0-9._:~-]{1,128}$"}
    description = "chats alone: a conversation that is kept here; its messages are put before those that are sent"
    return [{"name": "X-Session-Id", "in": "header", "required": False, "description": description, "schema": schema}]


def _describe_bodies(paths: Json) -> None:
    """FastAPI does not see what a route reads by itself, nor what it answers as bytes."""
    for path, name in (
        ("/v1/tokenize", "TokenizeRequest"),
        ("/v1/detokenize", "DetokenizeRequest"),
        ("/v1/route", "ChatCompletionRequest"),
    ):
        paths[path]["post"]["requestBody"] = _body(name)
    route = paths["/v1/route"]["post"]["responses"]["200"]["content"]
    route["application/json"]["schema"] = {"$ref": _REF + "RouteExplanation"}
    for path, name in (("/v1/models", "ModelList"), ("/v1/models/{model}", "ModelCard")):
        content = paths[path]["get"]["responses"]["200"]["content"]
        content["application/json"]["schema"] = {"$ref": _REF + name}


def _describe_input(schemas: Json) -> None:
    """The items of a response's input are decoded apart, because a message's type may be left out."""
    items = schemas.pop("InputItems")["properties"]["input"]
    schemas["ResponsesRequest"]["properties"]["input"] = {"anyOf": [{"type": "string"}, items]}


def _secure(path: str, operations: Json) -> None:
    if path.startswith(_PUBLIC):
        return
    for operation in operations.values():
        operation["security"] = [{"key": []}]
        # FastAPI's own shape of a refused body is not what we answer.
        operation["responses"].pop("422", None)
        operation["responses"].setdefault("4XX", _error("an error in OpenAI's shape"))


def _body(schema: str) -> Json:
    return {"required": True, "content": {"application/json": {"schema": {"$ref": _REF + schema}}}}


def _error(description: str) -> Json:
    return {"description": description, "content": {"application/json": {"schema": {"$ref": _REF + "ErrorBody"}}}}
