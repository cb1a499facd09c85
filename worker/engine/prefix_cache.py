"""Names for the content of KV blocks. A block's keys depend on every token before it, so its name chains them all.

The chain starts from the salt (the tenant), the model and the adapter: equal names mean equal keys and values, and
nobody can hit, or time, another salt's blocks. A name is 128 bits of a cryptographic hash: collisions cannot be
provoked.

Prompts that the operator made public are named without a salt, so that all tenants find them, separately for each
adapter; the blocks that follow them are named by the tenant's salt again.
"""

import hashlib
from array import array
from collections.abc import Sequence

from worker.engine.blocks import BLOCK_SIZE

_DIGEST_BYTES = 16
_NO_SALT = b"\xff\xff\xff\xff"
"""A length that no salt has."""


def root_digest(*, salt: str | None, model_version: str, adapter_digest: str) -> bytes:
    """salt: None for public prompts."""
    parts = [_framed(part) for part in (model_version, adapter_digest)]
    return _digest(b"".join([_NO_SALT if salt is None else _framed(salt), *parts]))


def chain_digest(parent: bytes, token_ids: Sequence[int]) -> bytes:
    """The name of the block that holds token_ids after everything that parent names."""
    return _digest(parent + array("q", token_ids).tobytes())


def salted_digest(root: bytes, public: bytes) -> bytes:
    """The parent of the block that follows a public one: from here on the root's salt counts."""
    return _digest(root + public)


class PublicPrompts:
    """Prompt prefixes that all tenants share."""

    def __init__(self, prompts: Sequence[Sequence[int]] = ()) -> None:
        self._prompts = prompts

    def names(self, token_ids: Sequence[int], *, model_version: str, adapter_digest: str) -> list[bytes]:
        """The names of the full blocks that token_ids share with a public prompt, the one with the longest common
        prefix."""
        num_blocks = max((_num_common(prompt, token_ids) for prompt in self._prompts), default=0) // BLOCK_SIZE
        parent = root_digest(salt=None, model_version=model_version, adapter_digest=adapter_digest)
        names = []
        for start in range(0, num_blocks * BLOCK_SIZE, BLOCK_SIZE):
            parent = chain_digest(parent, token_ids[start : start + BLOCK_SIZE])
            names.append(parent)
        return names


def _num_common(first: Sequence[int], second: Sequence[int]) -> int:
    pairs = zip(first, second, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(first), len(second)))


def _framed(part: str) -> bytes:
    """Lengths keep ("ab", "c") apart from ("a", "bc")."""
    encoded = part.encode()
    return len(encoded).to_bytes(4, "little") + encoded


def _digest(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=_DIGEST_BYTES).digest()
