"""Body and answer of `/v1/embeddings`, in OpenAI's format."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from protocol.errors import ProtocolError
from protocol.requests import PositiveInt, TokenId, UserName

MAX_INPUTS = 2048


class EmbeddingsRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Workers honour `priority` and `cache_salt` only together with the worker key; the gateway drops a client's."""

    model: Annotated[str, Meta(min_length=1, max_length=200)]
    # OpenAI's four forms. msgspec allows only one list type in a union, so `inputs_of` rejects mixed lists.
    input: str | list[str | TokenId | list[TokenId]]
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: PositiveInt | None = None
    user: UserName | None = None
    priority: Annotated[int, Meta(ge=0, le=3)] | None = None
    cache_salt: Annotated[str, Meta(max_length=200)] | None = None


class Embedding(msgspec.Struct, kw_only=True):
    """`embedding` is a list of numbers or, if base64 was requested, little-endian float32 values in base64."""

    object: Literal["embedding"] = "embedding"
    index: int
    embedding: list[float] | str


class EmbeddingsUsage(msgspec.Struct, kw_only=True):
    prompt_tokens: int
    total_tokens: int


class EmbeddingsResponse(msgspec.Struct, kw_only=True):
    object: Literal["list"] = "list"
    data: list[Embedding]
    model: str
    usage: EmbeddingsUsage


def inputs_of(request: EmbeddingsRequest) -> list[str | list[int]]:
    """The inputs, each a text or a list of token ids. Raises ProtocolError if there are none or too many, or if they
    are empty or mixed."""
    given = request.input
    if isinstance(given, str):
        return _checked([given])
    if given and all(isinstance(part, int) for part in given):
        return _checked([[part for part in given if isinstance(part, int)]])
    texts: list[str | list[int]] = [part for part in given if not isinstance(part, int)]
    if len(texts) < len(given) or len({type(text) for text in texts}) > 1:
        raise ProtocolError("send strings, or token ids, or lists of token ids, not a mixture", param="input")
    return _checked(texts)


def _checked(texts: list[str | list[int]]) -> list[str | list[int]]:
    if not 1 <= len(texts) <= MAX_INPUTS:
        raise ProtocolError(f"send 1 to {MAX_INPUTS} texts in a request, not {len(texts)}", param="input")
    for i, text in enumerate(texts):
        if not text:
            raise ProtocolError("a text must not be empty", param="input" if len(texts) == 1 else f"input[{i}]")
    return texts
