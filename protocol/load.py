"""A worker's load report, and the signed registration that carries it through Redis."""

import hashlib
import hmac
from collections.abc import Sequence
from typing import Annotated

import msgspec

from protocol.artifacts import ARTIFACT_PREFIX

WORKERS_KEY = "tiergate:workers"
"""A Redis hash: worker id -> sealed registration."""
HEARTBEAT_S = 0.5
STALE_AFTER_S = 5.0
"""A registration older than this belongs to a worker that is gone."""


LOAD_HEADER = "x-tiergate-load"
"""Sent with every answer of our workers: the fast-changing part of their load report."""
_Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]


class AdapterBase(msgspec.Struct, kw_only=True, frozen=True):
    """The base model's dimensions, which an adapter must fit. shapes: projection -> (out, in)."""

    num_layers: _Count
    shapes: dict[str, tuple[_Count, _Count]]
    max_rank: _Count


class LoadReport(msgspec.Struct, kw_only=True, frozen=True):
    """One replica's state; the answer of `GET /load`."""

    schema_version: int = 1
    worker_id: str
    model: str
    model_version: str
    pool: str | None
    adapters: tuple[str, ...]
    """The adapters that the replica serves."""
    num_running: _Count
    num_waiting: _Count
    max_num_seqs: _Count
    max_waiting: _Count
    max_model_len: Annotated[int, msgspec.Meta(ge=1, le=2**53)]
    num_blocks: _Count
    num_free_blocks: _Count
    block_size: _Count
    is_draining: bool
    prompt_tokens_total: _Count
    completion_tokens_total: _Count
    discarded_tokens_total: _Count
    resident_adapters: tuple[str, ...] | None = None
    """The adapters among `adapters` that are loaded, so that requests need not wait; None: all."""
    adapter_base: AdapterBase | None = None
    fetches_adapters: bool = False
    """Whether the replica serves any adapter of the platform's store, listed in `adapters` or not."""

    def serves(self, adapter: str) -> bool:
        return adapter in self.adapters or (self.fetches_adapters and adapter.startswith(ARTIFACT_PREFIX))

    def has_resident(self, adapter: str) -> bool:
        return adapter in (self.adapters if self.resident_adapters is None else self.resident_adapters)


class Registration(msgspec.Struct, kw_only=True, frozen=True):
    url: str
    sent_at_ms: int
    load: LoadReport


def load_header(*, num_running: int, num_waiting: int, num_free_blocks: int, is_draining: bool) -> bytes:
    return b"%d,%d,%d,%d" % (num_running, num_waiting, num_free_blocks, is_draining)


def with_header(load: LoadReport, header: bytes) -> LoadReport:
    """The report updated by the header of a later answer. Raises ValueError for an invalid header."""
    num_running, num_waiting, num_free_blocks, is_draining = [int(part) for part in header.split(b",")]
    if min(num_running, num_waiting, num_free_blocks) < 0 or num_free_blocks > load.num_blocks:
        raise ValueError("counts out of range")
    return msgspec.structs.replace(
        load,
        num_running=num_running,
        num_waiting=num_waiting,
        num_free_blocks=num_free_blocks,
        is_draining=bool(is_draining),
    )


class BadSignature(Exception):
    """A registration that was not sealed with our worker key."""


def seal(registration: Registration, *, worker_key: str) -> bytes:
    """`hex(HMAC-SHA256).json`. The signature keeps anyone who can merely write to Redis from attracting traffic."""
    payload = msgspec.json.encode(registration)
    return _sign(payload, worker_key) + b"." + payload


def unseal(sealed: bytes, *, worker_keys: Sequence[str]) -> Registration:
    """The registration, which may be sealed with any of the keys. Raises BadSignature."""
    signature, _, payload = sealed.partition(b".")
    if not any(hmac.compare_digest(signature, _sign(payload, key)) for key in worker_keys):
        raise BadSignature("a worker registration has a wrong signature; is TIERGATE_WORKER_KEY the same everywhere?")
    return msgspec.json.decode(payload, type=Registration)


def _sign(payload: bytes, worker_key: str) -> bytes:
    return hmac.new(worker_key.encode(), payload, hashlib.sha256).hexdigest().encode()
