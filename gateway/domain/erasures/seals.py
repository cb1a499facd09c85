"""The platform vouches with its pepper for what an erasure's report says: the seal is over the report's SHA-256."""

import hashlib
import hmac

from gateway.peppers import Peppers


def seal_of(digest: bytes, *, pepper: str) -> bytes:
    return hmac.digest(pepper.encode(), b"erasure:" + digest, hashlib.sha256)


def sealed_with(seal: bytes | None, digest: bytes, *, peppers: Peppers) -> str | None:
    """The pepper; None: none of these."""
    seals = ((pepper, seal_of(digest, pepper=pepper)) for pepper in peppers.all)
    return next((pepper for pepper, right in seals if hmac.compare_digest(seal or b"", right)), None)
