"""How busy another engine's server is, from its Prometheus `/metrics`."""

import math
import re
from dataclasses import dataclass

import msgspec

from protocol.foreign_json import UNREADABLE

# The numbers of running and of waiting requests, and the share of the KV cache in use.
_NAMES: dict[bytes, str] = {
    b"vllm:num_requests_running": "running",
    b"vllm:num_requests_waiting": "waiting",
    b"vllm:kv_cache_usage_perc": "kv",
    b"vllm:gpu_cache_usage_perc": "kv",
    b"sglang:num_running_reqs": "running",
    b"sglang:num_queue_reqs": "waiting",
    b"sglang:token_usage": "kv",
    b"tgi_batch_current_size": "running",
    b"tgi_queue_size": "waiting",
    b"llamacpp:requests_processing": "running",
    b"llamacpp:requests_deferred": "waiting",
    b"llamacpp:kv_cache_usage_ratio": "kv",
}
# Found by search, because parsing the whole text, most of which is histograms, would take milliseconds.
_SAMPLE = re.compile(rb"^(%s)(?:\{[^\n]*\})? +(\S+)" % b"|".join(map(re.escape, _NAMES)), re.MULTILINE)
_MAX_COUNT = 10**6


@dataclass(frozen=True, slots=True)
class ForeignLoad:
    """kv_usage: 0 to 1; None if the server does not report it."""

    num_running: int
    num_waiting: int
    kv_usage: float | None


def read_metrics(text: bytes) -> ForeignLoad | None:
    """None if the text does not report how many requests wait. Values of several engines in one server are combined."""
    found: dict[str, list[float]] = {"running": [], "waiting": [], "kv": []}
    for name, written in _SAMPLE.findall(_unquoted(text)):
        value = _number(written)
        if value is not None:
            found[_NAMES[name]].append(value)
    if not found["waiting"]:
        return None
    usages = [value for value in found["kv"] if value <= 1]
    return ForeignLoad(
        num_running=int(min(sum(found["running"]), _MAX_COUNT)),
        num_waiting=int(min(sum(found["waiting"]), _MAX_COUNT)),
        kv_usage=sum(usages) / len(usages) if usages else None,
    )


def _unquoted(text: bytes) -> bytes:
    """Some versions of llama.cpp's server send the text as one JSON string."""
    if not text.startswith(b'"'):
        return text
    try:
        return msgspec.json.decode(text, type=str).encode()
    except UNREADABLE:
        return text


def _number(written: bytes) -> float | None:
    """None for values that are negative, infinite or not a number."""
    try:
        value = float(written)
    except ValueError:
        return None
    return value if math.isfinite(value) and value >= 0 else None
