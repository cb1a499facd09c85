"""Names for the content of KV blocks. A block's keys depend on every token before it, so its name chains them all.

The chain starts from the salt (the tenant), the model and the adapter: equal names mean equal keys and values, and
nobody can hit, or time, another salt's blocks. 128 bits of a keyed-quality hash: collisions cannot be provoked.
"""

import hashlib
from array import array
from collections.abc import Sequence

_DIGEST_BYTES = 16


def root_digest(*, salt: str, model_version: str, adapter_digest: str) -> bytes:
    parts = (part.encode() for part in (salt, model_version, adapter_digest))
    # Lengths keep ("ab", "c") apart from ("a", "bc").
    framed = b"".join(len(part).to_bytes(4, "little") + part for part in parts)
    return hashlib.blake2b(framed, digest_size=_DIGEST_BYTES).digest()


def chain_digest(parent: bytes, token_ids: Sequence[int]) -> bytes:
    """The name of the block that holds token_ids after everything that parent names."""
    return hashlib.blake2b(parent + array("q", token_ids).tobytes(), digest_size=_DIGEST_BYTES).digest()
