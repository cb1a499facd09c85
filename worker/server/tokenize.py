"""`/tokenize` and `/detokenize` in vLLM's formats, and `/tokenizer` for the gateway."""

import asyncio

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from protocol.checks import check_template_fields, decode_body
from protocol.errors import ProtocolError
from protocol.requests import DetokenizeRequest, TokenizeRequest
from text.prompts import render_messages
from worker.server.replica import Replica
from worker.server.request_body import read_body

_TOKENIZE = msgspec.json.Decoder(TokenizeRequest)
_DETOKENIZE = msgspec.json.Decoder(DetokenizeRequest)


class TokenizeResponse(msgspec.Struct, kw_only=True):
    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None = None


class DetokenizeResponse(msgspec.Struct, kw_only=True):
    prompt: str


async def tokenize(request: Request) -> Response:
    replica: Replica = request.app.state.replica
    body = decode_body(await read_body(request, max_bytes=replica.max_body_bytes), _TOKENIZE)
    _check_model(replica, body.model)
    tokens = await asyncio.to_thread(_encode, replica, body)
    return _json(
        TokenizeResponse(
            count=len(tokens),
            max_model_len=replica.engine.max_model_len,
            tokens=tokens,
            token_strs=replica.bundle.tokenizer.tokens(tokens) if body.return_token_strs else None,
        )
    )


async def detokenize(request: Request) -> Response:
    replica: Replica = request.app.state.replica
    body = decode_body(await read_body(request, max_bytes=replica.max_body_bytes), _DETOKENIZE)
    _check_model(replica, body.model)
    tokenizer = replica.bundle.tokenizer
    unknown = tokenizer.find_unknown(body.tokens, num_rows=replica.engine.vocab_size)
    if unknown is not None:
        raise ProtocolError(f"tokens: token id {unknown} is outside the vocabulary", param="tokens")
    text = await asyncio.to_thread(tokenizer.decode, body.tokens, skip_special_tokens=False)
    return _json(DetokenizeResponse(prompt=text))


async def serve_bundle(request: Request) -> Response:
    """Everything that a gateway needs to count this model's prompts exactly."""
    replica: Replica = request.app.state.replica
    encoded = await asyncio.to_thread(replica.bundle.to_bytes)
    return Response(encoded, media_type="application/json")


def _encode(replica: Replica, body: TokenizeRequest) -> list[int]:
    bundle = replica.bundle
    if (body.prompt is None) == (body.messages is None):
        raise ProtocolError("send either prompt or messages", param="prompt")
    if body.prompt is not None:
        return bundle.encode_text(body.prompt, add_special_tokens=body.add_special_tokens is not False)
    check_template_fields(body)
    rendered = render_messages(bundle, body)
    return bundle.encode_rendered(rendered, add_special_tokens=bool(body.add_special_tokens))


def _check_model(replica: Replica, model: str | None) -> None:
    if model is not None:
        replica.adapter_for(model)


def _json(answer: msgspec.Struct) -> Response:
    return Response(msgspec.json.encode(answer), media_type="application/json")
