"""An adapter uploaded as a form: fields, then `config`, then `weights`, which are streamed on to the store."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.requests import ClientDisconnect, Request

from gateway.artifacts.refusal import BadAdapter
from gateway.http.errors import GatewayError, InvalidRequest
from gateway.http.forms import Form, Part
from protocol.artifacts import CONFIG_FILE, WEIGHTS_FILE
from protocol.peft_config import MAX_CONFIG_BYTES

_PICKLES = (".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt")


@asynccontextmanager
async def form_upload(request: Request) -> AsyncIterator["FormUpload"]:
    """A refused upload is still read to its end: many clients read no answer before they have sent everything."""
    chunks = request.stream()
    try:
        yield FormUpload(chunks, request.headers["content-type"])
    except GatewayError:
        try:
            async for _ in chunks:
                pass
        except (ClientDisconnect, GatewayError):
            pass
        raise


class FormUpload:
    """Call in this order: `fields`, `config`, `weights`, `finish`. All raise InvalidRequest."""

    def __init__(self, chunks: AsyncIterator[bytes], content_type: str) -> None:
        self._form = Form(chunks, content_type)
        self._next: Part | None = None

    async def fields(self) -> dict[str, str]:
        """The fields before the first file."""
        found: dict[str, str] = {}
        while (part := await self._form.next_part()) is not None and part.filename is None:
            if part.name in found:
                raise InvalidRequest(f"{part.name}: it came twice", param=part.name)
            found[part.name] = await part.text()
        self._next = part
        return found

    async def config(self) -> bytes:
        part = self._next
        if part is None or part.name != "config":
            raise InvalidRequest(f"send {CONFIG_FILE} as the file `config`, after the fields", param="config")
        return await part.read(max_bytes=MAX_CONFIG_BYTES)

    async def weights(self) -> AsyncIterator[bytes]:
        part = await self._form.next_part()
        if part is None or part.name != "weights":
            raise InvalidRequest(f"send {WEIGHTS_FILE} as the file `weights`, after `config`", param="weights")
        filename = (part.filename or "").lower()
        if filename.endswith(_PICKLES):
            raise BadAdapter(
                f"{part.filename!r}: pickles run code when they are read, and are not read here; save the adapter "
                "with safetensors",
                param="weights",
            )
        async for chunk in part.chunks():
            yield chunk

    async def finish(self) -> None:
        if await self._form.next_part() is not None:
            raise InvalidRequest("`weights` must be the last part of the form", param="weights")
