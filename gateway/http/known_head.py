"""A request's head that a connection has sent before: clients repeat theirs, but for the length of the body.

The parser has checked every byte of it once, so that the next one needs to be compared, not parsed.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*([0-9]{1,15})[ \t]*\r\n", re.IGNORECASE)
_END = b"\r\n\r\n"
_NAME = b"content-length"


@dataclass(frozen=True, slots=True)
class KnownHead:
    before: bytes
    """Up to the digits of Content-Length."""
    after: bytes
    """Behind them, with the empty line."""
    scope: Mapping[str, Any]
    """ASGI's, of the request that was parsed."""
    length_at: int
    """Which of its headers is Content-Length."""

    def body_in(self, data: bytes) -> bytes | None:
        """The body, where `data` is this head with any length and a body that is as long, and nothing else."""
        begin = len(self.before)
        if not data.startswith(self.before):
            return None
        end = data.find(b"\r", begin, begin + 16)
        digits = data[begin:end]
        if not digits.isdigit() or not data.startswith(self.after, end):
            return None
        body = data[end + len(self.after) :]
        return body if len(body) == int(digits) else None

    def scope_for(self, body: bytes) -> dict[str, Any]:
        headers = list(self.scope["headers"])
        headers[self.length_at] = (_NAME, b"%d" % len(body))
        return {**self.scope, "headers": headers, "state": {}}


def known_head(data: bytes, scope: Mapping[str, Any]) -> KnownHead | None:
    """scope: of the one request that `data` was parsed to. None where its body was not told by one Content-Length."""
    end = data.find(_END) + len(_END)
    found = _LENGTH.search(data, 0, end)
    names = [name for name, _ in scope["headers"]]
    if found is None or len(data) - end != int(found[1]):
        return None
    if names.count(_NAME) != 1 or b"transfer-encoding" in names or b"expect" in names:
        return None
    return KnownHead(data[: found.start(1)], data[found.end(1) : end], dict(scope), names.index(_NAME))
