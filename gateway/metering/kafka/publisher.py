"""Records into Kafka, acknowledged by all replicas in sync.

The client's producer is idempotent: what it sends again, because an answer was lost, the broker stores once. After a
failure that the client does not mend by itself we begin anew with another producer id; then a record may be there
twice, and ClickHouse deduplicates.
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
"""Without any acknowledgement. The client would go on asking for a topic that is gone, with all of a core."""
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
    """Positions in what was given."""

    acknowledged: list[int]
    refused: list[tuple[int, str]]
    """What no broker will ever take, and why."""


class Publisher:
    """One thread at a time. Connects when first used, and anew after a failure."""

    def __init__(self, settings: KafkaSettings, stop: threading.Event) -> None:
        self._settings = settings
        self._stop = stop
        self._producer: _Producer | None = None

    def publish(
        self, topic: str, records: Sequence[Record], on_acknowledged: Callable[[Published], None] = lambda _: None
    ) -> None:
        """Send all; `on_acknowledged` gets what is over with, also where another part fails.

        Raises KafkaUnavailable when a record's fate is unknown, or when `stop` is set meanwhile.
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
        """Whatever was not acknowledged yet is given up."""
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
        """The library's `close(timeout=0)`, which gives up what is unsent, waits for it first, and so never closes."""
        if timeout != 0:
            super().flush(timeout)


class _Refused:
    """A record that the client itself does not send, as its futures look."""

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
        # Explicit, because the library turns idempotence off in silence where another setting contradicts a default.
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
    """As the default one, less the hashing of each key, which is a loop in Python, for every record."""

    def partition(
        self, topic: str, key: Any, serialized_key: bytes | None, value: Any, serialized_value: Any, cluster: Any
    ) -> int:
        if serialized_key is None:
            return int(super().partition(topic, key, serialized_key, value, serialized_value, cluster))
        return int((_hash(serialized_key) & 0x7FFFFFFF) % len(cluster.partitions_for_topic(topic)))
