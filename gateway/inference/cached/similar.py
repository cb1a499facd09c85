"""A message's meaning as a vector, from the platform's own embeddings endpoint, requested on behalf of the tenant."""

import logging
import time
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from gateway.clock import utc_now
from gateway.http.answer import WHOLE_BODY
from gateway.http.errors import GatewayError
from gateway.inference.embeddings.handler import EMBEDDINGS_PATH
from gateway.inference.exchange import Exchange
from gateway.inference.server_tools.rounds import RunRound
from gateway.inference.validate import Accepted
from protocol.embeddings import EmbeddingsRequest, EmbeddingsResponse
from protocol.errors import ProtocolError
from protocol.ids import new_request_id

_log = logging.getLogger(__name__)
_DECODER = msgspec.json.Decoder(EmbeddingsResponse)


async def vector_of(text: str, accepted: Accepted[Any], *, model: str, run: RunRound) -> bytes | None:
    """The text's embedding, of length 1, as float16. None if there is none now; the request then goes on without."""
    now = utc_now()
    asked = EmbeddingsRequest(model=model, input=text, user=accepted.request.user)
    embedding = msgspec.structs.replace(
        accepted,
        request_id=new_request_id(now),
        client_request_id=accepted.request_id,
        path=EMBEDDINGS_PATH,
        endpoint=None,
        body=msgspec.json.encode(asked),
        request=asked,
        received_at=now,
        received_monotonic_s=time.monotonic(),
        session_id=None,
    )
    parts: list[bytes] = []

    async def take(message: Any) -> None:
        parts.append(message.get(WHOLE_BODY, b""))

    try:
        await run(Exchange({"path": EMBEDDINGS_PATH, "headers": ()}, _no_body, take), embedding)
        found = _DECODER.decode(b"".join(parts)).data[0].embedding
    except (GatewayError, ProtocolError, msgspec.MsgspecError) as error:
        _log.info("no embedding of a message now: %s", error)
        return None
    vector = np.asarray(found, np.float32)
    length = float(np.linalg.norm(vector))
    return (vector / length).astype(np.float16).tobytes() if length > 0 else None


def nearest(vector: bytes, kept: Sequence[tuple[str, bytes]], *, min_similarity: float) -> str | None:
    """The name of the kept vector with the highest cosine; None if that is below `min_similarity`."""
    # Vectors of another length come from another embedding model.
    comparable = [(name, other) for name, other in kept if len(other) == len(vector)]
    if not comparable:
        return None
    others = np.frombuffer(b"".join(other for _, other in comparable), np.float16).reshape(len(comparable), -1)
    cosines = others.astype(np.float32) @ np.frombuffer(vector, np.float16).astype(np.float32)
    best = int(cosines.argmax())
    return comparable[best][0] if cosines[best] >= min_similarity else None


async def _no_body() -> Any:
    raise AssertionError("there is no client")
