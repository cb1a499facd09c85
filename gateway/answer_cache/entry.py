"""A cached answer as it is stored."""

import msgspec


class CachedAnswer(msgspec.Struct, array_like=True, frozen=True):
    """parts: a stream's chunks as they went to the client, without the closing one; or a whole answer's single body.

    The fields after `parts` are from the answer's usage event, for the usage events of requests that it answers again.
    """

    made_at_s: float
    """Unix time."""
    headers: dict[str, str]
    """The headers that say what served the original request."""
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
