"""A stored value as bytes: JSON, compressed with zstd, and sealed with AES-256-GCM if there is a key."""

import os
from typing import TypeVar

import msgspec
import zstandard
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

T = TypeVar("T")
_PLAIN, _SEALED = b"\0", b"\1"
_NONCE_BYTES = 12
MAX_BYTES = 64 * 2**20
"""Limit for the JSON when it is read, far above what is written."""


class Unreadable(Exception):
    """The value is damaged, or was sealed under a key that is gone or for another place."""


def pack(value: object, *, key: bytes | None, place: str) -> bytes:
    """place: where the value will be stored; a sealed value can be read only from there."""
    packed = zstandard.compress(msgspec.json.encode(value))
    if key is None:
        return _PLAIN + packed
    nonce = os.urandom(_NONCE_BYTES)
    return _SEALED + nonce + AESGCM(key).encrypt(nonce, packed, place.encode())


def unpack(kept: bytes, type: type[T], *, key: bytes | None, place: str) -> T:
    """Raises Unreadable."""
    try:
        packed = kept[1:]
        if kept[:1] == _SEALED:
            if key is None:
                raise Unreadable("the tenant's key is gone")
            nonce, sealed = packed[:_NONCE_BYTES], packed[_NONCE_BYTES:]
            packed = AESGCM(key).decrypt(nonce, sealed, place.encode())
        text = zstandard.ZstdDecompressor().decompress(packed, max_output_size=MAX_BYTES)
        return msgspec.json.decode(text, type=type)
    except (InvalidTag, zstandard.ZstdError, msgspec.MsgspecError, ValueError) as error:
        raise Unreadable(str(error) or type.__name__) from error
