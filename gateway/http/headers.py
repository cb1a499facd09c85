"""A request's headers, checked by what holds on every route. The hot path reads them here, too: about a microsecond."""

from collections import Counter

from gateway.http.errors import InvalidRequest, UnsupportedMediaType

RawHeaders = list[tuple[bytes, bytes]]
Headers = dict[bytes, bytes]

_ONCE = (b"authorization", b"host", b"content-type", b"content-encoding")
"""Two of them are two requests in one: a proxy and we might each believe another."""


def read_headers(raw: RawHeaders) -> Headers:
    """By lower-case name; of a name that comes twice, the last. Raises InvalidRequest or UnsupportedMediaType."""
    headers = dict(raw)
    if len(headers) != len(raw):
        _refuse_twins(raw)
    encoding = headers.get(b"content-encoding")
    if encoding is not None and encoding.lower() != b"identity":
        raise UnsupportedMediaType("send the body as it is, without a Content-Encoding")
    transfer = headers.get(b"transfer-encoding")
    if transfer is not None and transfer.lower() != b"chunked":
        raise UnsupportedMediaType("send no other Transfer-Encoding than chunked")
    return headers


def check_json(headers: Headers) -> None:
    """Raises UnsupportedMediaType where the Content-Type says that the body is not JSON. It may be absent."""
    content_type = headers.get(b"content-type")
    if content_type is None or content_type == b"application/json":
        return
    media_type = content_type.partition(b";")[0].strip().lower()
    if media_type == b"application/json" or (media_type.startswith(b"application/") and media_type.endswith(b"+json")):
        return
    shown = media_type.decode("ascii", "replace")[:100]
    raise UnsupportedMediaType(
        f"the Content-Type of the body is {shown!r}; send JSON with `Content-Type: application/json`"
    )


def _refuse_twins(raw: RawHeaders) -> None:
    counts = Counter(name for name, _ in raw)
    for name in _ONCE:
        if counts[name] > 1:
            raise InvalidRequest(f"the header {name.decode().title()} came {counts[name]} times; send it once")
