"""Opaque page cursors: the sorting key of a page's last row."""

import base64
import binascii
from typing import Any

import msgspec

from gateway.http.errors import InvalidRequest


def encode_cursor(*values: int | str) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode(values)).decode().rstrip("=")


def decode_cursor(cursor: str, *types: type) -> list[Any]:
    """The cursor's values, which must have exactly these types. Raises InvalidRequest."""
    try:
        values = msgspec.json.decode(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)), type=list[Any])
    except (binascii.Error, ValueError, msgspec.DecodeError):
        values = []
    if [type(value) for value in values] != list(types):
        raise InvalidRequest("after: send the `next` of the page before, with the same group_by", param="after")
    return values
