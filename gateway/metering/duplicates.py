"""Events that arrive twice and differ in what they bill.

Delivery is at least once, so a copy is nothing to speak of, and a verdict of another version (a gateway that died, an
answer that failed) replaces the first by that version. Two events of one request and one version that bill different
amounts are somebody's mistake: the first one stands, and the other is set aside for a person.
"""

from collections.abc import Sequence
from typing import Any

from gateway.metering.store import TABLE, UsageStore, version_of
from protocol.usage import UsageEvent

_BILLED = (
    *("prompt_tokens", "cached_prompt_tokens", "completion_tokens", "cost_nanousd"),
    *("status", "model_version", "adapter_id"),
)
_Key = tuple[str, str, int]
_SELECT = f"""SELECT tenant_id, request_id, version, {", ".join(_BILLED)} FROM {TABLE}
WHERE tenant_id IN {{tenants:Array(String)}} AND toStartOfHour(timestamp) IN {{hours:Array(DateTime('UTC'))}}
AND request_id IN {{requests:Array(String)}}"""


def find_differing(store: UsageStore, events: Sequence[UsageEvent]) -> dict[int, str]:
    """Position -> how the event differs from the one that stands. Raises StoreUnavailable."""
    standing = dict(_stored(store, events))
    differing = {}
    for position, event in enumerate(events):
        billed = tuple([getattr(event, name) for name in _BILLED])
        first = standing.setdefault((event.tenant_id, event.request_id, version_of(event)), billed)
        if first != billed:
            changes = zip(_BILLED, first, billed, strict=True)
            differing[position] = ", ".join(f"{name} {was} -> {now}" for name, was, now in changes if was != now)
    return differing


def _stored(store: UsageStore, events: Sequence[UsageEvent]) -> "list[tuple[_Key, tuple[Any, ...]]]":
    parameters = {
        "tenants": list({event.tenant_id for event in events}),
        "hours": list({event.timestamp.replace(minute=0, second=0, microsecond=0) for event in events}),
        "requests": list({event.request_id for event in events}),
    }
    return [((row[0], row[1], row[2]), tuple(row[3:])) for row in store.select(_SELECT, parameters)]
