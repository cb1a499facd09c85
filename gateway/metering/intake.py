"""How a batch of encoded events gets into ClickHouse, from an outbox or from Kafka.

Each event is decoded and checked, compared with the stored rows, and inserted. An event that cannot become a row is
refused to its source, which keeps it for a person: an outbox in a separate table, Kafka in the dead-letter topic.
"""

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime

import msgspec

from gateway.clock import utc_now
from gateway.metering.duplicates import find_differing
from gateway.metering.journal import ClosedEvent
from gateway.metering.records import decode_counts
from gateway.metering.shipper import NothingTaken, Shipper, Source
from gateway.metering.store import InsertRefused, UsageStore
from gateway.metering.validation import InvalidEvent, parse_event

_log = logging.getLogger(__name__)


@dataclass
class Landed:
    num_inserted: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    """By kind."""


class Intake:
    def __init__(
        self,
        store: UsageStore,
        *,
        clock: Callable[[], datetime] = utc_now,
        on_landed: Callable[[Landed], None] = lambda _: None,
    ) -> None:
        self._store = store
        self._shipper = Shipper(store)
        self._clock = clock
        self._on_landed = on_landed

    def land(self, source: Source, rows: Sequence[tuple[int, bytes]]) -> None:
        """Move all `rows` out of the source: into ClickHouse, or set aside. Raises StoreUnavailable."""
        landed = Landed()
        closed = self._compare(source, self._parse(source, rows, landed), landed)
        num_refused = self._shipper.ship(source, closed)
        landed.num_inserted = len(closed) - num_refused
        if num_refused:
            landed.refused["refused_by_clickhouse"] += num_refused
        self._on_landed(landed)

    def land_counts(self, records: Sequence[bytes]) -> None:
        """Insert the counts that gateways keep beside events. Raises StoreUnavailable.

        Refused counts are only logged: the gateway sends a count again when it grows."""
        counts = []
        for record in records:
            try:
                counts.append(decode_counts(record))
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                _log.error("no gateway's counts, %.200r: %s", record, error)
        try:
            self._store.insert_counts(counts)
        except InsertRefused as error:
            _log.error("ClickHouse refuses what gateways count: %s", error)

    def _parse(self, source: Source, rows: Sequence[tuple[int, bytes]], landed: Landed) -> list[ClosedEvent]:
        now, closed = self._clock(), []
        for seq, encoded in rows:
            try:
                closed.append(ClosedEvent(seq, parse_event(encoded, now=now)))
            except InvalidEvent as error:
                source.refuse(seq, str(error))
                landed.refused[error.kind] += 1
        return closed

    def _compare(self, source: Source, closed: list[ClosedEvent], landed: Landed) -> list[ClosedEvent]:
        try:
            differing = find_differing(self._store, [each.event for each in closed]) if closed else {}
        except InsertRefused as error:
            # The next connection migrates the tables.
            self._store.close()
            raise NothingTaken(str(error)) from error
        for position, difference in differing.items():
            source.refuse(closed[position].seq, f"differing_duplicate: {difference}")
        landed.refused["differing_duplicate"] += len(differing)
        return [each for position, each in enumerate(closed) if position not in differing]
