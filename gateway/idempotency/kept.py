"""An answer as it is kept in Redis: compressed, and sealed under a key derived from the platform's pepper.

Answers hold what users said, and those of the admin plane hold secrets that are shown once.
"""

import os
import zlib

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from gateway.peppers import Peppers

_NONCE_BYTES = 12
_KEY_BYTES = 32
_LEVEL = 1


class KeptAnswer(msgspec.Struct, array_like=True, frozen=True):
    """headers: without those that every answer gets anew. body: as it was sent, including a stream's events."""

    status: int
    headers: dict[str, str]
    body: bytes


_DECODER = msgspec.msgpack.Decoder(KeptAnswer)


class AnswerSeal:
    def __init__(self, peppers: Peppers) -> None:
        self._ciphers = [_cipher(pepper) for pepper in peppers.all]

    def seal(self, answer: KeptAnswer, *, name: str) -> bytes:
        """name: the answer is kept under this name, and can be opened under no other."""
        nonce = os.urandom(_NONCE_BYTES)
        packed = zlib.compress(msgspec.msgpack.encode(answer), _LEVEL)
        return nonce + self._ciphers[0].encrypt(nonce, packed, name.encode())

    def open(self, sealed: bytes, *, name: str) -> KeptAnswer | None:
        """None if the answer was sealed under another pepper or name."""
        for cipher in self._ciphers:
            try:
                packed = cipher.decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], name.encode())
            except InvalidTag:
                continue
            return _DECODER.decode(zlib.decompress(packed))
        return None


def _cipher(pepper: str) -> AESGCM:
    return AESGCM(HKDF(SHA256(), _KEY_BYTES, salt=None, info=b"tiergate kept answers").derive(pepper.encode()))
