"""Publishes records to Kafka, acknowledged by all in-sync replicas.

The client's producer is idempotent: a record that is resent because an answer was lost is stored once. After a failure
that the client cannot recover from we start over with a new producer id; then a record may be stored twice, and
ClickHouse deduplicates.
"""

import threading
import time
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from kafka import KafkaProducer
from kafka.errors import InvalidRecordError, KafkaTimeoutError, MessageSizeTooLargeError, RecordListTooLargeError
from kafka.partitioner.default import DefaultPartitioner, murmur2

from gateway.kafka_settings import KafkaSettings
from gateway.metering.kafka.connection import KafkaUnavailable, client_options, kafka_calls
from gateway.metering.kafka.topics import MAX_RECORD_BYTES

DELIVERY_TIMEOUT_S = 20.0
STALL_S = 6.0
"""Longest wait without any acknowledgement. The client would ask for a deleted topic without end, using a full core."""
LINGER_MS = 5
BATCH_BYTES = 512 * 1024
BUFFER_TIMEOUT_MS = 5000
_LOOK_S = 0.2
_FOR_THE_RECORD_ITSELF = (MessageSizeTooLargeError, RecordListTooLargeError, InvalidRecordError)


class Record(NamedTuple):
    key: bytes | None
    value: bytes
    headers: list[tuple[str, bytes]]


class Published(NamedTuple):
    """Positions in the published records."""

    acknowledged: list[int]
    refused: list[tuple[int, str]]
    """Records that no broker will ever take, each with the reason."""


class Publisher:
    """Used by one thread at a time. Connects on first use, and again after a failure."""

    def __init__(self, settings: KafkaSettings, stop: threading.Event) -> None:
        self._settings = settings
        self._stop = stop
        self._producer: _Producer | None = None

    def publish(
        self, topic: str, records: Sequence[Record], on_acknowledged: Callable[[Published], None] = lambda _: None
    ) -> None:
        """Send all records. `on_acknowledged` gets the settled ones, also if other records fail.

        Raises KafkaUnavailable if a record's fate is unknown or `stop` is set meanwhile.
        """
        try:
            with kafka_calls():
                futures = self._send(topic, records)
                self._wait(futures)
        except BaseException:
            self.close()
            raise
        published, failure = _outcome(futures)
        on_acknowledged(published)
        if failure is not None:
            self.close()
            with kafka_calls():
                raise failure

    def close(self) -> None:
        """Close without waiting for outstanding acknowledgements."""
        producer, self._producer = self._producer, None
        if producer is not None:
            producer.close(timeout=0)

    def _send(self, topic: str, records: Sequence[Record]) -> list[Any]:
        if self._producer is None:
            self._producer = _Producer(**_producer_options(self._settings))
        send, futures = self._producer.send, []
        for key, value, headers in records:
            try:
                futures.append(send(topic, value, key, headers))
            except MessageSizeTooLargeError as error:
                futures.append(_Refused(error))
        return futures

    def _wait(self, futures: Sequence[Any]) -> None:
        assert self._producer is not None
        num_done, done_at = 0, time.monotonic()
        while (now_done := sum(future.is_done for future in futures)) < len(futures):
            if now_done > num_done:
                num_done, done_at = now_done, time.monotonic()
            if self._stop.is_set() or time.monotonic() - done_at > STALL_S:
                raise KafkaUnavailable("no acknowledgement in time")
            try:
                self._producer.flush(_LOOK_S)
            except KafkaTimeoutError:
                continue


class _Producer(KafkaProducer):  # type: ignore[misc]
    def flush(self, timeout: float | None = None) -> None:
        """Skip flushing in `close(timeout=0)`.

        The library's `close(timeout=0)` should give up unsent records, but flushes them first and so never closes."""
        if timeout != 0:
            super().flush(timeout)


class _Refused:
    """Stands in for the future of a record that the client itself refuses to send."""

    is_done = True

    def __init__(self, error: Exception) -> None:
        self.exception = error


def _outcome(futures: Sequence[Any]) -> tuple[Published, Exception | None]:
    published, failure = Published([], []), None
    for position, future in enumerate(futures):
        if future.exception is None:
            published.acknowledged.append(position)
        elif isinstance(future.exception, _FOR_THE_RECORD_ITSELF):
            published.refused.append((position, str(future.exception)))
        else:
            failure = future.exception
    return published, failure


def _producer_options(settings: KafkaSettings) -> dict[str, Any]:
    return client_options(settings) | {
        # Explicit, because the library silently disables a default idempotence that another setting contradicts.
        "enable_idempotence": True,
        "acks": "all",
        "max_in_flight_requests_per_connection": 5,
        "delivery_timeout_ms": int(DELIVERY_TIMEOUT_S * 1000),
        "max_block_ms": BUFFER_TIMEOUT_MS,
        "compression_type": settings.kafka_compression,
        "linger_ms": LINGER_MS,
        "batch_size": BATCH_BYTES,
        "max_request_size": MAX_RECORD_BYTES,
        "allow_auto_create_topics": False,
        "metrics_enabled": False,
        "partitioner": _KeyPartitioner(),
    }


_hash = lru_cache(maxsize=100_000)(murmur2)


class _KeyPartitioner(DefaultPartitioner):  # type: ignore[misc]
    """The default partitioner with cached key hashes: murmur2 is a loop in Python, too slow for every record."""

    def partition(
        self, topic: str, key: Any, serialized_key: bytes | None, value: Any, serialized_value: Any, cluster: Any
    ) -> int:
        if serialized_key is None:
            return int(super().partition(topic, key, serialized_key, value, serialized_value, cluster))
        return int((_hash(serialized_key) & 0x7FFFFFFF) % len(cluster.partitions_for_topic(topic)))
