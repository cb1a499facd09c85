"""Sealing of secrets that must be readable again, so not hashed: AES-256-GCM under a key derived from the pepper."""

import os

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from gateway.peppers import Peppers

_NONCE_BYTES = 12
KEY_BYTES = 32


class CannotUnseal(Exception):
    """The secret was sealed under another pepper, for another purpose or bound to something else."""


def seal(secret: bytes, *, purpose: bytes, bound_to: bytes, pepper: str) -> bytes:
    """Returns nonce, ciphertext and tag, concatenated."""
    nonce = os.urandom(_NONCE_BYTES)
    return nonce + AESGCM(_key(pepper, purpose)).encrypt(nonce, secret, bound_to)


def unseal(sealed: bytes, *, purpose: bytes, bound_to: bytes, peppers: Peppers) -> bytes:
    """Raises CannotUnseal."""
    return unseal_with(sealed, purpose=purpose, bound_to=bound_to, peppers=peppers)[0]


def unseal_with(sealed: bytes, *, purpose: bytes, bound_to: bytes, peppers: Peppers) -> tuple[bytes, str]:
    """The secret and the pepper that it was sealed under. Raises CannotUnseal."""
    nonce, ciphertext = sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:]
    for pepper in peppers.all:
        try:
            return AESGCM(_key(pepper, purpose)).decrypt(nonce, ciphertext, bound_to), pepper
        except InvalidTag:
            continue
    raise CannotUnseal


def _key(pepper: str, purpose: bytes) -> bytes:
    return HKDF(SHA256(), KEY_BYTES, salt=None, info=purpose).derive(pepper.encode())
