"""A request head that the connection has sent before. Clients repeat the same head with only a different body length.

The parser has checked every byte of it once, so the next one is compared instead of parsed.
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
    """From behind these digits, including the empty line."""
    scope: Mapping[str, Any]
    """The ASGI scope of the request that was parsed."""
    length_at: int
    """The index of Content-Length in the scope's headers."""

    def body_in(self, data: bytes) -> bytes | None:
        """The body, if `data` is exactly this head, with any Content-Length, and a body of that length; else None."""
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
    """scope: of the single request that `data` holds. None unless exactly one Content-Length announced its body."""
    end = data.find(_END) + len(_END)
    found = _LENGTH.search(data, 0, end)
    names = [name for name, _ in scope["headers"]]
    if found is None or len(data) - end != int(found[1]):
        return None
    if names.count(_NAME) != 1 or b"transfer-encoding" in names or b"expect" in names:
        return None
    return KnownHead(data[: found.start(1)], data[found.end(1) : end], dict(scope), names.index(_NAME))
