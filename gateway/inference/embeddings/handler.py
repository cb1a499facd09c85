"""`POST /v1/embeddings`, step by step as a completion goes."""

import msgspec
from starlette.types import Receive, Scope, Send

from gateway.inference.embeddings.measure import measure
from gateway.inference.embeddings.relay import EmbeddingsRelay
from gateway.inference.exchange import Exchange
from gateway.inference.handler import carry_out, respond
from gateway.inference.validate import Accepted
from gateway.services import Services
from protocol.checks import decode_body
from protocol.embeddings import EmbeddingsRequest, inputs_of

EMBEDDINGS_PATH = "/v1/embeddings"
_DECODER = msgspec.json.Decoder(EmbeddingsRequest)


class EmbeddingsEndpoint:
    """An ASGI application, as `CompletionsEndpoint` is."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await respond(self._services, Exchange(scope, receive, send), _validate, _complete)


def _validate(exchange: Exchange, body: bytes) -> EmbeddingsRequest:
    """Raises ProtocolError, naming the field."""
    request = decode_body(body, _DECODER)
    inputs_of(request)
    return request


async def _complete(services: Services, exchange: Exchange, accepted: Accepted[EmbeddingsRequest]) -> None:
    measured = await measure(accepted, services.registry.fleet, services.bundles)
    await carry_out(
        services,
        exchange,
        accepted,
        measured,
        lambda record, accounts: EmbeddingsRelay(services, exchange, accepted, record, accounts),
    )
