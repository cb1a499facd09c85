"""What a worker tells of itself: its load report, and the signed registration that carries it through Redis."""

import hashlib
import hmac

import msgspec

WORKERS_KEY = "tiergate:workers"
"""A Redis hash: worker id -> sealed registration."""
HEARTBEAT_S = 0.5
STALE_AFTER_S = 5.0
"""A registration older than this belongs to a worker that is gone."""


class LoadReport(msgspec.Struct, kw_only=True, frozen=True):
    """One replica's state; the answer of `GET /load`."""

    schema_version: int = 1
    worker_id: str
    model: str
    model_version: str
    pool: str | None
    adapters: tuple[str, ...]
    """That it serves."""
    num_running: int
    num_waiting: int
    max_num_seqs: int
    max_waiting: int
    max_model_len: int
    num_blocks: int
    num_free_blocks: int
    block_size: int
    is_draining: bool
    prompt_tokens_total: int
    completion_tokens_total: int
    discarded_tokens_total: int
    resident_adapters: tuple[str, ...] | None = None
    """Those of `adapters` that a request need not wait for; None: all."""


class Registration(msgspec.Struct, kw_only=True, frozen=True):
    url: str
    sent_at_ms: int
    load: LoadReport


class BadSignature(Exception):
    """A registration that was not sealed with our worker key."""


def seal(registration: Registration, *, worker_key: str) -> bytes:
    """`hex(HMAC-SHA256).json`, so that nobody who can only write to Redis can attract traffic."""
    payload = msgspec.json.encode(registration)
    return _sign(payload, worker_key) + b"." + payload


def unseal(sealed: bytes, *, worker_key: str) -> Registration:
    """Raises BadSignature."""
    signature, _, payload = sealed.partition(b".")
    if not hmac.compare_digest(signature, _sign(payload, worker_key)):
        raise BadSignature("a worker registration has a wrong signature; is TIERGATE_WORKER_KEY the same everywhere?")
    return msgspec.json.decode(payload, type=Registration)


def _sign(payload: bytes, worker_key: str) -> bytes:
    return hmac.new(worker_key.encode(), payload, hashlib.sha256).hexdigest().encode()
