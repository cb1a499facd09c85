"""`POST /v1/embeddings`, in the same steps as a completion."""

import msgspec

from gateway.inference.embeddings.measure import measure
from gateway.inference.embeddings.relay import EmbeddingsRelay
from gateway.inference.exchange import Exchange
from gateway.inference.operation import Operation
from gateway.inference.validate import refuse_session
from protocol.checks import decode_body
from protocol.embeddings import EmbeddingsRequest, inputs_of

EMBEDDINGS_PATH = "/v1/embeddings"
_DECODER = msgspec.json.Decoder(EmbeddingsRequest)


def _validate(exchange: Exchange, body: bytes) -> EmbeddingsRequest:
    """Raises ProtocolError or InvalidRequest, naming the field."""
    refuse_session(exchange)
    request = decode_body(body, _DECODER)
    inputs_of(request)
    return request


EMBEDDING = Operation(_validate, measure, EmbeddingsRelay)
