"""Checks that the backlog of a ClickHouse outage drains without loss while traffic continues.

python -m benchmarks.backlog [--events 1000000] [--traffic 500]

While ClickHouse is down, a million events gather in Kafka; then ClickHouse comes back. All the while a gateway's outbox
closes `--traffic` events per second. Every event of both must become exactly one row. Prints one JSON line; exits 1 if
an event is missing, is stored twice, or has other tokens.
"""

import argparse
import asyncio
import json
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from benchmarks.metering import NUM_TENANTS, fill, running
from gateway.clock import utc_now
from gateway.metering.folders import list_folders
from gateway.metering.outbox import Outbox
from gateway.metering.schema import connect_migrated
from protocol.ids import new_request_id
from tests.support.clickhouse import start_clickhouse, url_at
from tests.support.events import OpenEvent, make_event
from tests.support.kafka import running_kafka
from tests.support.kafka_clients import topic_size
from tests.support.ports import free_port

DEADLINE_S = 900.0
SETTLE_S = 60.0
LOOK_S = 0.5
TURN_S = 0.1
_SUMS = "SELECT count(), sum(completion_tokens) FROM usage_events FINAL"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--traffic", type=int, default=500, help="events a second")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tiergate-backlog-") as folder:
        result = measure(Path(folder), options.events, options.traffic)
    print(json.dumps({"benchmark": "backlog", **result}))
    sys.exit(bool(result["missing"] or result["tokens_missing"]))


class Traffic:
    """A gateway's outbox that closes `per_s` events per second, until `stop`."""

    def __init__(self, data_dir: Path, per_s: int) -> None:
        self._data_dir = data_dir
        self._per_turn = max(1, round(per_s * TURN_S))
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._close_for_ever()))
        self.num_events = 0
        self.num_tokens = 0
        self.worst_close_ms = 0.0

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stop closing events. All that were counted are durable then."""
        self._is_over.set()
        self._thread.join()

    async def _close_for_ever(self) -> None:
        async with Outbox(self._data_dir, "living") as outbox:
            while not self._is_over.is_set():
                turn = asyncio.create_task(asyncio.sleep(TURN_S))
                began_s = time.monotonic()
                await asyncio.gather(*(self._close_one(outbox) for _ in range(self._per_turn)))
                self.worst_close_ms = max(self.worst_close_ms, (time.monotonic() - began_s) * 1000)
                await turn

    async def _close_one(self, outbox: Outbox) -> None:
        at = utc_now()
        tenant_id, num_tokens = f"tenant-{self.num_events % NUM_TENANTS}", self.num_events % 500
        event = make_event(new_request_id(at), tenant_id=tenant_id, timestamp=at, completion_tokens=num_tokens)
        self.num_events += 1
        self.num_tokens += num_tokens
        outbox.open(OpenEvent(event))
        await outbox.close(event)


def measure(folder: Path, num_events: int, traffic_per_s: int) -> dict[str, Any]:
    data_dir, port = folder / "data", free_port()
    fill(data_dir, num_events)
    with ExitStack() as stack:
        broker = stack.enter_context(running_kafka(folder / "kafka"))
        variables = {
            "TIERGATE_KEY_PEPPER": "p" * 16,
            "TIERGATE_DATA_DIR": str(data_dir),
            "TIERGATE_CLICKHOUSE_URL": url_at(port),
            "TIERGATE_KAFKA_BOOTSTRAP_SERVERS": broker.server,
            "TIERGATE_KAFKA_REPLICATION": "1",
        }
        traffic = Traffic(data_dir, traffic_per_s)
        stack.callback(traffic.stop)
        traffic.start()
        stack.enter_context(running(variables, "producer", "consumer"))
        began_s = time.monotonic()
        # The remaining folder belongs to the live gateway.
        _wait(lambda: len(list_folders(data_dir)) == 1)
        gathered_s = time.monotonic() - began_s
        num_waiting = topic_size(broker.server, "tiergate.usage")
        clickhouse = start_clickhouse(folder / "clickhouse", port)
        stack.callback(clickhouse.kill)
        back_s = time.monotonic()
        with connect_migrated(clickhouse.url) as client:

            def ask(what: str) -> tuple[int, ...]:
                return tuple(map(int, client.query(f"SELECT {what} FROM usage_events").result_rows[0]))

            _wait(lambda: ask("count()")[0] >= num_waiting)
            drained_s = time.monotonic() - back_s
            traffic.stop()
            wanted = num_events + traffic.num_events
            with suppress(TimeoutError):
                _wait(lambda: ask("uniqExact(tenant_id, request_id)")[0] >= wanted, deadline_s=SETTLE_S)
            num_rows, num_tokens = map(int, client.query(_SUMS).result_rows[0])
    wanted_tokens = sum(number % 500 for number in range(num_events)) + traffic.num_tokens
    return {
        "events": num_events,
        "waited_in_kafka": num_waiting,
        "into_kafka_s": round(gathered_s, 1),
        "drained_s": round(drained_s, 1),
        "events_per_s": round(num_waiting / drained_s),
        "traffic_events": traffic.num_events,
        "worst_close_ms": round(traffic.worst_close_ms, 1),
        "missing": wanted - num_rows,
        "tokens_missing": wanted_tokens - num_tokens,
    }


def _wait(condition: Callable[[], object], *, deadline_s: float = DEADLINE_S) -> None:
    """Wait until the condition is true. Raises TimeoutError."""
    deadline = time.monotonic() + deadline_s
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {deadline_s} s")
        time.sleep(LOOK_S)


if __name__ == "__main__":
    main()
