"""Reads a request's body: JSON only, and never more of it than is allowed."""

from starlette.requests import Request

from protocol.errors import ProtocolError


class BodyTooLarge(ProtocolError):
    status = 413

    def __init__(self, max_bytes: int) -> None:
        super().__init__(f"the body is larger than {max_bytes} bytes; send less", code="body_too_large")


class NotJson(ProtocolError):
    status = 415

    def __init__(self, content_type: str | None) -> None:
        shown = "absent" if content_type is None else repr(content_type[:100])
        super().__init__(
            f"the Content-Type of the body is {shown}; send JSON with `Content-Type: application/json`",
            code="unsupported_media_type",
        )


async def read_body(request: Request, *, max_bytes: int) -> bytes:
    """Raises NotJson before anything is read, BodyTooLarge as soon as the limit is passed, and starlette's
    ClientDisconnect.

    Any web page may send a body of another content type, or of none, to a worker on its reader's machine. For JSON, a
    browser asks the worker first (CORS preflight), and the worker never consents.
    """
    content_type = request.headers.get("content-type")
    if content_type is None or content_type.partition(";")[0].strip().lower() != "application/json":
        raise NotJson(content_type)
    length = request.headers.get("content-length", "0")
    if length.isdigit() and int(length) > max_bytes:
        raise BodyTooLarge(max_bytes)
    chunks, num_bytes = [], 0
    async for chunk in request.stream():
        num_bytes += len(chunk)
        if num_bytes > max_bytes:
            raise BodyTooLarge(max_bytes)
        chunks.append(chunk)
    return b"".join(chunks)
