"""Seals over the reports of erasures: with its pepper, the platform vouches for a report's SHA-256."""

import hashlib
import hmac

from gateway.peppers import Peppers


def seal_of(digest: bytes, *, pepper: str) -> bytes:
    return hmac.digest(pepper.encode(), b"erasure:" + digest, hashlib.sha256)


def sealed_with(seal: bytes | None, digest: bytes, *, peppers: Peppers) -> str | None:
    """The pepper that made the seal; None: none of `peppers` did."""
    seals = ((pepper, seal_of(digest, pepper=pepper)) for pepper in peppers.all)
    return next((pepper for pepper, right in seals if hmac.compare_digest(seal or b"", right)), None)
