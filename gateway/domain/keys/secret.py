"""The format of a key, `tg-<8 characters for lookup>-<secret of 32 or more characters>`, and its hash."""

import hashlib
import hmac
import re
import secrets
import string

from gateway.peppers import Peppers

_ALPHABET = string.ascii_lowercase + string.digits
_FORMAT = re.compile(r"tg-([a-z0-9]{8})-[A-Za-z0-9_-]{32,}")
SECRET_BYTES = 32


def make_key() -> str:
    prefix = "".join(secrets.choice(_ALPHABET) for _ in range(8))
    return f"tg-{prefix}-{secrets.token_urlsafe(SECRET_BYTES)}"


def lookup_prefix(key: str) -> str:
    """The 8 characters a key is looked up by; for an operator's own bootstrap key they are taken from its hash."""
    match = _FORMAT.fullmatch(key)
    return match[1] if match else hashlib.sha256(key.encode()).hexdigest()[:8].upper()


def has_own_format(key: str) -> bool:
    """Whether the key has the format of `make_key`; an operator's own bootstrap key may have another."""
    return _FORMAT.fullmatch(key) is not None


def hash_key(key: str, *, pepper: str) -> bytes:
    """32 bytes. A key has 256 random bits, so one HMAC is enough: guessing need not be slowed down."""
    return hmac.digest(pepper.encode(), key.encode(), "sha256")


def pepper_behind(secret_hash: bytes, key: str, *, pepper_id: bytes | None, peppers: Peppers) -> str | None:
    """The pepper that made this hash of the key; None: the hash is another key's, or we do not have its pepper."""
    for pepper in peppers.likely(pepper_id):
        if is_same_hash(secret_hash, hash_key(key, pepper=pepper)):
            return pepper
    return None


def is_same_hash(a: bytes, b: bytes) -> bool:
    return hmac.compare_digest(a, b)
