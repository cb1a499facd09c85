"""Reads the usage topic as a member of a consumer group: in batches, whose offsets are committed once they have landed.

Records that were read but not committed are read again: after a rebalance, a crash, or the deletion and re-creation of
the topic. For the last case each commit carries the topic's id: the offsets of an earlier topic of the same name are
meaningless and would skip records of the new one.
"""

import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from kafka import KafkaAdminClient, KafkaConsumer
from kafka.consumer.subscription_state import ConsumerRebalanceListener
from kafka.errors import CommitFailedError, IllegalGenerationError, RebalanceInProgressError, UnknownMemberIdError
from kafka.structs import MemberState, OffsetAndMetadata, TopicPartition

from gateway.kafka_settings import KafkaSettings
from gateway.metering.kafka.connection import client_options, connect_admin, kafka_calls
from gateway.metering.kafka.topics import MAX_RECORD_BYTES, topic_id

BATCH = 20_000
MAX_WAIT_S = 0.5
"""How long the first record of a batch waits for others."""
SESSION_TIMEOUT_MS = 10_000
"""After this time the partitions of a consumer that does not answer go to the other consumers."""
CHECK_S = 2.0
_COMMIT_TIMEOUT_MS = 10_000
_POLL_MS = 100
_NOT_OURS_ANY_MORE = (CommitFailedError, IllegalGenerationError, RebalanceInProgressError, UnknownMemberIdError)


class Superseded(Exception):
    """The records in hand are no longer ours to land; they will be read again, here or by another consumer."""


class GroupReader:
    """Used by one thread. Connects on first use, and again after a failure."""

    def __init__(self, settings: KafkaSettings, stop: threading.Event, *, batch: int = BATCH) -> None:
        self._settings = settings
        self._topic = settings.kafka_topic
        self._stop = stop
        self._batch = batch
        self._consumer: KafkaConsumer | None = None
        self._admin: KafkaAdminClient | None = None
        self._listener = _Listener()
        self._topic_id = ""
        self._checked_at = 0.0
        self._lag: Mapping[int, int] = {}

    def collect(self) -> list[Any]:
        """Up to a batch of records, collected for at most MAX_WAIT_S. Raises KafkaUnavailable or ConfigError."""
        with kafka_calls():
            consumer = self._connected()
            self._check_in_time()
            records: list[Any] = []
            deadline = time.monotonic() + MAX_WAIT_S
            while len(records) < self._batch and time.monotonic() < deadline and not self._stop.is_set():
                found = consumer.poll(_POLL_MS, max_records=self._batch - len(records))
                _finish_joining(consumer)
                if self._listener.take():
                    # A partition that stays with us keeps its position: without a rewind its dropped records are lost.
                    self._rewind()
                    records.clear()
                    continue
                for part in found.values():
                    records += part
            self._measure_lag(consumer, records, {})
            return records

    def hold(self, records: Sequence[Any]) -> None:
        """Stay in the group while a batch waits to land. Raises Superseded or KafkaUnavailable."""
        with kafka_calls():
            consumer = self._connected()
            consumer.pause(*consumer.assignment())
            consumer.poll(0)
            _finish_joining(consumer)
            consumer.resume(*consumer.assignment())
            if self._listener.is_set:
                raise Superseded
            # Without fetches, which would report the ends, they must be asked for.
            self._measure_lag(consumer, records, consumer.end_offsets(list(consumer.assignment())))

    def commit(self, records: Sequence[Any]) -> None:
        """Commit `records`, which have all landed. Raises Superseded or KafkaUnavailable."""
        with kafka_calls():
            if self._listener.is_set:
                raise Superseded
            self._check_topic()
            ends: dict[TopicPartition, int] = {}
            for record in records:
                part = TopicPartition(record.topic, record.partition)
                ends[part] = max(ends.get(part, 0), record.offset + 1)
            offsets = {part: OffsetAndMetadata(end, self._topic_id, -1) for part, end in ends.items()}
            try:
                self._connected().commit(offsets, timeout_ms=_COMMIT_TIMEOUT_MS)
            except _NOT_OURS_ANY_MORE as error:
                self._listener.set()
                raise Superseded from error

    def lag(self) -> Mapping[int, int]:
        """Partition -> number of uncommitted records, as of the last round. May be called from any thread."""
        return self._lag

    def close(self) -> None:
        consumer, self._consumer = self._consumer, None
        admin, self._admin = self._admin, None
        self._listener = _Listener()
        if consumer is not None:
            consumer.close(autocommit=False, timeout_ms=2000)
        if admin is not None:
            admin.close()

    def _connected(self) -> KafkaConsumer:
        if self._consumer is None:
            self._admin = connect_admin(self._settings)
            self._topic_id = topic_id(self._admin, self._topic)
            self._consumer = KafkaConsumer(**_consumer_options(self._settings, self._batch))
            self._consumer.subscribe([self._topic], listener=self._listener)
        return self._consumer

    def _check_in_time(self) -> None:
        if time.monotonic() - self._checked_at > CHECK_S:
            try:
                self._check_topic()
            except Superseded:
                self._rewind()

    def _check_topic(self) -> None:
        """Raises Superseded if the topic was re-created, and KafkaUnavailable while there is no such topic."""
        assert self._admin is not None
        found = topic_id(self._admin, self._topic)
        self._checked_at = time.monotonic()
        if found != self._topic_id:
            self._topic_id = found
            self._listener.set()
            raise Superseded

    def _measure_lag(self, consumer: KafkaConsumer, in_hand: Sequence[Any], ends: Mapping[TopicPartition, int]) -> None:
        """ends: partition ends that are more recent than those of the last fetch."""
        lag = Counter(record.partition for record in in_hand)
        for part in consumer.assignment():
            end = ends.get(part, consumer.highwater(part))
            position = consumer.position(part, timeout_ms=_POLL_MS)
            lag[part.partition] += max(0, end - position) if end is not None and position is not None else 0
        self._lag = lag

    def _rewind(self) -> None:
        """Seek to the offsets committed for this topic id; to the beginning where there are none."""
        consumer = self._consumer
        assert consumer is not None
        for part in consumer.assignment():
            committed = consumer.committed(part, metadata=True, timeout_ms=_COMMIT_TIMEOUT_MS)
            if committed is not None and committed.metadata == self._topic_id:
                consumer.seek(part, committed.offset)
            else:
                consumer.seek_to_beginning(part)


def _finish_joining(consumer: KafkaConsumer) -> None:
    """Ask for the rejoin again that the library (3.0.12) may have forgotten.

    The library rejoins when a topic's partitions change, but forgets this if the poll ends before the broker has
    answered. The consumer would then stay without partitions and heartbeats for ever."""
    if consumer.group_metadata().state is MemberState.REBALANCING:
        consumer._coordinator.request_rejoin()


class _Listener(ConsumerRebalanceListener):  # type: ignore[misc]
    """Only notes that partitions were assigned or taken away. Called on the library's own thread."""

    def __init__(self) -> None:
        self._changed = threading.Event()

    @property
    def is_set(self) -> bool:
        return self._changed.is_set()

    def set(self) -> None:
        self._changed.set()

    def take(self) -> bool:
        is_set = self._changed.is_set()
        self._changed.clear()
        return is_set

    def on_partitions_revoked(self, revoked: Any) -> None:
        self._changed.set()

    def on_partitions_assigned(self, assigned: Any) -> None:
        self._changed.set()

    def on_partitions_lost(self, lost: Any) -> None:
        self._changed.set()


def _consumer_options(settings: KafkaSettings, batch: int) -> dict[str, Any]:
    return client_options(settings) | {
        "group_id": settings.kafka_group,
        "enable_auto_commit": False,
        "auto_offset_reset": "earliest",
        "allow_auto_create_topics": False,
        "max_poll_records": batch,
        "session_timeout_ms": SESSION_TIMEOUT_MS,
        "heartbeat_interval_ms": SESSION_TIMEOUT_MS // 5,
        "fetch_max_wait_ms": 200,
        "max_partition_fetch_bytes": 4 * MAX_RECORD_BYTES,
        "metrics_enabled": False,
    }
