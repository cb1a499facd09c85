"""A request's headers, checked against the rules of all routes. The hot path uses this, too: about a microsecond."""

from collections import Counter

from gateway.http.errors import InvalidRequest, UnsupportedMediaType

RawHeaders = list[tuple[bytes, bytes]]
Headers = dict[bytes, bytes]

_ONCE = (b"authorization", b"host", b"content-type", b"content-encoding")
"""Headers that may come only once: given two, a proxy and we might each believe a different one."""


def read_headers(raw: RawHeaders) -> Headers:
    """Headers by lower-case name. If a name is repeated, the last value counts. Raises InvalidRequest or
    UnsupportedMediaType."""
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
    """Raises UnsupportedMediaType if there is a Content-Type and it is not JSON."""
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
