"""Reads a `multipart/form-data` body part by part as it arrives. No file is buffered whole, in memory or on disk."""

from collections import deque
from collections.abc import AsyncIterator

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.requests import ClientDisconnect
from starlette.types import Scope

from gateway.http.errors import InvalidRequest

MAX_PARTS = 16
_MEDIA_TYPE = b"multipart/form-data"


def is_form(scope: Scope) -> bool:
    return any(
        name == b"content-type" and value.partition(b";")[0].strip().lower() == _MEDIA_TYPE
        for name, value in scope["headers"]
    )


class Part:
    """One part of the form. Read it to its end before asking for the next."""

    def __init__(self, form: "Form", name: str, filename: str | None) -> None:
        self._form = form
        self.name = name
        self.filename = filename

    async def read(self, *, max_bytes: int) -> bytes:
        content = b""
        async for chunk in self.chunks():
            content += chunk
            if len(content) > max_bytes:
                raise InvalidRequest(f"{self.name}: more than {max_bytes} bytes", param=self.name)
        return content

    async def text(self, *, max_bytes: int = 1024) -> str:
        try:
            return (await self.read(max_bytes=max_bytes)).decode()
        except UnicodeDecodeError as error:
            raise InvalidRequest(f"{self.name}: this is not UTF-8", param=self.name) from error

    async def chunks(self) -> AsyncIterator[bytes]:
        while (event := await self._form.next_event()) is not None:
            assert isinstance(event, bytes)
            yield event


class Form:
    """Methods raise InvalidRequest if the body is not a valid form or was cut off."""

    def __init__(self, chunks: AsyncIterator[bytes], content_type: str) -> None:
        _, options = parse_options_header(content_type)
        boundary = options.get(b"boundary")
        if not boundary:
            raise InvalidRequest("the Content-Type names no boundary")
        self._chunks = chunks
        self._events: deque[Part | bytes | None] = deque()
        """For each part: the Part at its beginning, its data, and None at its end."""
        self._num_parts = 0
        self._headers: dict[bytes, bytes] = {}
        self._field = self._value = b""
        self._is_over = False
        self._parser = MultipartParser(
            boundary,
            {
                "on_part_begin": self._on_part_begin,
                "on_header_field": self._on_header_field,
                "on_header_value": self._on_header_value,
                "on_header_end": self._on_header_end,
                "on_headers_finished": self._on_headers_finished,
                "on_part_data": self._on_part_data,
                "on_part_end": self._on_part_end,
                "on_end": self._on_end,
            },
        )

    async def next_part(self) -> Part | None:
        """The next part; None after the last one, once the whole form has arrived."""
        while not self._events and not self._is_over:
            await self._parse_more()
        if not self._events:
            return None
        part = self._events.popleft()
        assert isinstance(part, Part), "the part before was not read to its end"
        return part

    async def next_event(self) -> bytes | None:
        while not self._events:
            await self._parse_more()
        event = self._events.popleft()
        assert not isinstance(event, Part)
        return event

    async def _parse_more(self) -> None:
        try:
            chunk = await anext(self._chunks)
            self._parser.write(chunk)
        except (StopAsyncIteration, ClientDisconnect):
            raise InvalidRequest("the form ends before its last boundary: the upload was cut") from None
        except FormParserError as error:
            raise InvalidRequest(f"this is no multipart form: {error}"[:300]) from error

    # Parser callbacks, called inside `write`.

    def _on_part_begin(self) -> None:
        self._num_parts += 1
        if self._num_parts > MAX_PARTS:
            raise InvalidRequest(f"the form has more than {MAX_PARTS} parts")
        self._headers = {}

    def _on_header_field(self, data: bytes, start: int, end: int) -> None:
        self._field += data[start:end]

    def _on_header_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def _on_header_end(self) -> None:
        self._headers[self._field.lower()] = self._value
        self._field = self._value = b""

    def _on_headers_finished(self) -> None:
        _, options = parse_options_header(self._headers.get(b"content-disposition", b""))
        name, filename = options.get(b"name"), options.get(b"filename")
        if name is None:
            raise InvalidRequest("a part of the form has no name")
        shown = None if filename is None else filename.decode(errors="replace")
        self._events.append(Part(self, name.decode(errors="replace"), shown))

    def _on_part_data(self, data: bytes, start: int, end: int) -> None:
        self._events.append(data[start:end])

    def _on_part_end(self) -> None:
        self._events.append(None)

    def _on_end(self) -> None:
        self._is_over = True
