"""An answer as it is kept."""

import msgspec


class CachedAnswer(msgspec.Struct, array_like=True, frozen=True):
    """parts: a stream's chunks as they went to the client, without the closing one, or the one body of a whole answer.

    What follows is what its usage event told, for the next one.
    """

    made_at_s: float
    """Since the epoch."""
    headers: dict[str, str]
    """What really served it."""
    parts: list[bytes]
    pool: str
    model_id: str
    model_version: str
    adapter_id: str | None
    prompt_tokens: int
    completion_tokens: int
    finish_reason: str | None


decode_answer = msgspec.msgpack.Decoder(CachedAnswer).decode
encode_answer = msgspec.msgpack.Encoder().encode
