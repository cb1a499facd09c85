"""Reading a request's body, never more of it than is allowed."""

from starlette.requests import Request

from protocol.errors import ProtocolError


class BodyTooLarge(ProtocolError):
    status = 413

    def __init__(self, max_bytes: int) -> None:
        super().__init__(f"the body is larger than {max_bytes} bytes; send less", code="body_too_large")


async def read_body(request: Request, *, max_bytes: int) -> bytes:
    """Raises BodyTooLarge as soon as the limit is passed, and starlette's ClientDisconnect."""
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
