"""Counts admitted and closed requests by hour of arrival and tenant, to prove that every request became an event.

The counts are kept in memory and added to the outbox's file several times a second, behind the events they count."""

from protocol.counts import AdmissionCount
from protocol.usage import UsageEvent


class AdmissionCounter:
    def __init__(self) -> None:
        self._counts: dict[tuple[int, str], list[int]] = {}

    def count(self, event: UsageEvent, *, num_admitted: int, num_closed: int) -> None:
        key = hour_of(event)
        counts = self._counts.get(key)
        if counts is None:
            counts = self._counts[key] = [0, 0]
        counts[0] += num_admitted
        counts[1] += num_closed

    def take(self) -> list[AdmissionCount]:
        """The increments since the last call."""
        taken, self._counts = self._counts, {}
        return [AdmissionCount(*key, *counts) for key, counts in taken.items()]


def hour_of(event: UsageEvent) -> tuple[int, str]:
    """The start of the hour of arrival in Unix seconds, and the tenant id."""
    return int(event.timestamp.timestamp()) // 3600 * 3600, event.tenant_id
