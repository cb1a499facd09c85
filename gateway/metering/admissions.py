"""Counts what was admitted and what of it was closed, by hour of arrival and tenant, for the proof that every request
became an event. In memory, and several times a second handed to the outbox's file, behind the events that it counts."""

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
        """What came on top since the last time."""
        taken, self._counts = self._counts, {}
        return [AdmissionCount(*key, *counts) for key, counts in taken.items()]


def hour_of(event: UsageEvent) -> tuple[int, str]:
    """The hour of the arrival, in Unix time, and the tenant."""
    return int(event.timestamp.timestamp()) // 3600 * 3600, event.tenant_id
