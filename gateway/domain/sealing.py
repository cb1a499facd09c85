"""Secrets that must be read again, so that hashing will not do: AES-256-GCM under a key from the platform's pepper."""

import os

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

_NONCE_BYTES = 12
KEY_BYTES = 32


class CannotUnseal(Exception):
    """Sealed under another pepper, for another purpose or bound to something else."""


def seal(secret: bytes, *, purpose: bytes, bound_to: bytes, pepper: str) -> bytes:
    """Nonce, ciphertext and tag."""
    nonce = os.urandom(_NONCE_BYTES)
    return nonce + AESGCM(_key(pepper, purpose)).encrypt(nonce, secret, bound_to)


def unseal(sealed: bytes, *, purpose: bytes, bound_to: bytes, pepper: str) -> bytes:
    """Raises CannotUnseal."""
    nonce, ciphertext = sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:]
    try:
        return AESGCM(_key(pepper, purpose)).decrypt(nonce, ciphertext, bound_to)
    except InvalidTag:
        raise CannotUnseal from None


def _key(pepper: str, purpose: bytes) -> bytes:
    return HKDF(SHA256(), KEY_BYTES, salt=None, info=purpose).derive(pepper.encode())
