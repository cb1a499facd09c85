"""Finds duplicate events that bill different amounts.

Delivery is at least once, so an identical copy is normal, and an event with another version (after a gateway died or an
answer failed) replaces or yields to the first by its version. Two events of the same request and version that bill
different amounts are an error somewhere: the first one stands, and the other is set aside for a person.
"""

from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import Any

from gateway.metering.store import TABLE, UsageStore, version_of
from protocol.usage import UsageEvent

_BILLED = (
    *("prompt_tokens", "cached_prompt_tokens", "completion_tokens", "cost_nanousd"),
    *("status", "model_version", "adapter_id"),
)
_FROM = f"""SELECT tenant_id, request_id, version, {", ".join(_BILLED)} FROM {TABLE}
WHERE tenant_id IN {{tenants:Array(String)}} AND toStartOfHour(timestamp) IN {{hours:Array(DateTime('UTC'))}}
AND """
# Ids are ordered by time, so the rows between the first and last id of a batch are little more than the batch's own
# copies, and two ids are faster to send and to look up than thousands.
_BETWEEN = f"{_FROM} request_id BETWEEN {{first:String}} AND {{last:String}} LIMIT {{limit:UInt64}}"
_NAMED = f"{_FROM} request_id IN {{requests:Array(String)}}"
_MAX_BETWEEN = 4
"""Rows per event. More rows mean that the ids are not ordered by time; they are then looked up by name."""
_NAMED_AT_ONCE = 1000


def find_differing(store: UsageStore, events: Sequence[UsageEvent]) -> dict[int, str]:
    """Position -> how the event differs from the one that came first. Raises StoreUnavailable or InsertRefused."""
    standing = {(row[0], row[1], row[2]): tuple(row[3:]) for row in _stored(store, events)}
    differing = {}
    for position, event in enumerate(events):
        billed = _billed(event)
        first = standing.setdefault((event.tenant_id, event.request_id, version_of(event)), billed)
        if first != billed:
            changes = zip(_BILLED, first, billed, strict=True)
            differing[position] = ", ".join(f"{name} {was} -> {now}" for name, was, now in changes if was != now)
    return differing


_billed: Callable[[UsageEvent], tuple[Any, ...]] = attrgetter(*_BILLED)


def _stored(store: UsageStore, events: Sequence[UsageEvent]) -> Iterable[Sequence[Any]]:
    ids = [event.request_id for event in events]
    parameters: dict[str, Any] = {
        "tenants": list({event.tenant_id for event in events}),
        "hours": list({event.timestamp.replace(minute=0, second=0, microsecond=0) for event in events}),
    }
    limit = _MAX_BETWEEN * len(events) + _NAMED_AT_ONCE
    rows = store.select(_BETWEEN, parameters | {"first": min(ids), "last": max(ids), "limit": limit})
    if len(rows) < limit:
        return rows
    parts = (ids[first : first + _NAMED_AT_ONCE] for first in range(0, len(ids), _NAMED_AT_ONCE))
    return [row for part in parts for row in store.select(_NAMED, parameters | {"requests": part})]
