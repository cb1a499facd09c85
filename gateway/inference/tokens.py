"""`POST /v1/tokenize` and `/v1/detokenize`, compatible with vLLM's."""

import asyncio
from typing import Any

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response

from gateway.domain.principal import Principal
from gateway.http.errors import InvalidRequest, ModelNotFound, Unavailable
from gateway.inference.exchange import Exchange
from gateway.services import PrincipalDep, Services, ServicesDep
from protocol.checks import check_template_fields, decode_body
from protocol.requests import DetokenizeRequest, TokenizeRequest
from router.fleet import AUTO, SMALL, Pool
from text.bundle import Bundle
from text.prompts import render_messages

router = APIRouter(prefix="/v1", tags=["tokens"])

MAX_CHARS = 1_000_000
"""About half a second of CPU. Tokenizing is free of charge and not rate-limited, so one call must not cost much."""

_TOKENIZE = msgspec.json.Decoder(TokenizeRequest)
_DETOKENIZE = msgspec.json.Decoder(DetokenizeRequest)
_JSON: dict[int | str, dict[str, Any]] = {200: {"content": {"application/json": {}}}}


@router.post("/tokenize", response_class=Response, responses=_JSON)
async def tokenize(request: Request, principal: PrincipalDep, services: ServicesDep) -> Response:
    principal.require("inference")
    asked = decode_body(await _read(request, services), _TOKENIZE)
    pool, bundle = _pool_and_bundle(services, principal, asked.model)
    token_ids = await asyncio.to_thread(_encode, bundle, asked)
    strings = bundle.tokenizer.tokens(token_ids) if asked.return_token_strs else None
    return _json(
        {
            "count": len(token_ids),
            "max_model_len": pool.context_window,
            "tokens": token_ids,
            "token_strs": strings,
        }
    )


@router.post("/detokenize", response_class=Response, responses=_JSON)
async def detokenize(request: Request, principal: PrincipalDep, services: ServicesDep) -> Response:
    principal.require("inference")
    asked = decode_body(await _read(request, services), _DETOKENIZE)
    _, bundle = _pool_and_bundle(services, principal, asked.model)
    unknown = bundle.tokenizer.find_unknown(asked.tokens)
    if unknown is not None:
        raise InvalidRequest(f"tokens: token id {unknown} is outside the vocabulary", param="tokens")
    return _json({"prompt": await asyncio.to_thread(bundle.tokenizer.decode, asked.tokens)})


async def _read(request: Request, services: Services) -> bytes:
    """The body, with the same size limit as a completion's."""
    exchange = Exchange(request.scope, request.receive, _no_send)
    return await exchange.read_body(services.settings.max_body_bytes)


async def _no_send(_message: object) -> None:
    raise AssertionError("only reads")


def _pool_and_bundle(services: Services, principal: Principal, model: str | None) -> tuple[Pool, Bundle]:
    fleet = services.registry.fleet
    name = SMALL if model in (None, AUTO) else str(model)
    pool = fleet.pool_serving(name)
    principal.require_model(str(model or name), *(() if pool is None else (pool.name, pool.model_id)))
    if pool is None:
        adapter = services.catalog.current.adapter_of(principal.tenant_id, name)
        bases = adapter.variants if adapter else {}
        pool = next((found for found in fleet.pools.values() if found.model_id in bases), None)
    if pool is None:
        raise ModelNotFound(str(model))
    bundle = services.bundles.bundle_of(pool.name)
    if bundle is None:
        raise Unavailable(f"the tokenizer of {pool.name} is not known yet", retry_after_s=2)
    return pool, bundle


def _encode(bundle: Bundle, asked: TokenizeRequest) -> list[int]:
    if (asked.prompt is None) == (asked.messages is None):
        raise InvalidRequest("send either prompt or messages", param="prompt")
    if asked.prompt is not None:
        _check_length(asked.prompt, "prompt")
        return bundle.encode_text(asked.prompt, add_special_tokens=asked.add_special_tokens is not False)
    check_template_fields(asked)
    rendered = render_messages(bundle, asked)
    _check_length(rendered, "messages")
    return bundle.encode_rendered(rendered, add_special_tokens=bool(asked.add_special_tokens))


def _check_length(text: str, param: str) -> None:
    if len(text) > MAX_CHARS:
        raise InvalidRequest(f"{len(text)} characters; send at most {MAX_CHARS} at a time", param=param)


def _json(value: object) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")
