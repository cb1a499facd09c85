"""The shape of a key and its hash. Format: `tg-<8 characters to look it up by>-<secret of 32 or more>`."""

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
    """The 8 characters a key is looked up by. An operator's own bootstrap key has none and gets them from its hash."""
    match = _FORMAT.fullmatch(key)
    return match[1] if match else hashlib.sha256(key.encode()).hexdigest()[:8].upper()


def has_own_format(key: str) -> bool:
    """As `make_key` makes them; an operator's own bootstrap key may be otherwise."""
    return _FORMAT.fullmatch(key) is not None


def hash_key(key: str, *, pepper: str) -> bytes:
    """32 bytes. A key has 256 random bits, so one HMAC is enough: there is nothing to guess slowly."""
    return hmac.digest(pepper.encode(), key.encode(), "sha256")


def pepper_behind(secret_hash: bytes, key: str, *, pepper_id: bytes | None, peppers: Peppers) -> str | None:
    """The pepper that this hash of the key was made with; None: it is another key's, or no pepper that we have."""
    for pepper in peppers.likely(pepper_id):
        if is_same_hash(secret_hash, hash_key(key, pepper=pepper)):
            return pepper
    return None


def is_same_hash(a: bytes, b: bytes) -> bool:
    return hmac.compare_digest(a, b)
