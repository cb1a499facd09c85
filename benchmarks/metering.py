"""Measures how fast usage gets from the outbox into ClickHouse, with and without Kafka, all on this machine.

python -m benchmarks.metering [--events 100000] [--min-kafka 10000] [--min-direct 20000]

The producer and the consumer are the real processes; ClickHouse is the embedded engine, and Kafka is one broker. The
time is measured from the first row to the last. Without Kafka the consumer empties an outbox; with Kafka the producer
and the consumer work at the same time.

Prints one JSON line for each; exits 1 below a gate, or if a row or a token is missing.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from gateway.metering.folders import create_folder
from gateway.metering.journal import Journal, encode_event
from gateway.metering.schema import connect_migrated
from protocol.ids import new_request_id
from tests.support.clickhouse import running_clickhouse
from tests.support.events import make_event
from tests.support.kafka import running_kafka
from tests.support.platform import clean_environment

NUM_TENANTS = 50
DEADLINE_S = 900.0
_FILL = 10_000
_LOOK_S = 0.3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=100_000)
    parser.add_argument("--min-kafka", type=float, default=10_000)
    parser.add_argument("--min-direct", type=float, default=20_000)
    options = parser.parse_args()
    is_well = True
    for way, gate in {"kafka": options.min_kafka, "direct": options.min_direct}.items():
        result = measure(options.events, through_kafka=way == "kafka")
        has_passed = result["events_per_s"] >= gate and not result["missing"] and not result["tokens_missing"]
        row = {"benchmark": "metering", "way": way, **result, "gate": gate, "passed": has_passed}
        print(json.dumps(row), flush=True)
        is_well = is_well and has_passed
    sys.exit(not is_well)


def measure(num_events: int, *, through_kafka: bool) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="tiergate-metering-") as text:
        folder = Path(text)
        with running_clickhouse(folder / "clickhouse") as clickhouse:
            variables = {
                "TIERGATE_KEY_PEPPER": "p" * 16,
                "TIERGATE_DATA_DIR": str(folder / "data"),
                "TIERGATE_CLICKHOUSE_URL": clickhouse.url,
            }
            fill(folder / "data", num_events)
            if not through_kafka:
                return _drain(clickhouse.url, num_events, variables, "consumer")
            with running_kafka(folder / "kafka") as broker:
                variables |= {"TIERGATE_KAFKA_BOOTSTRAP_SERVERS": broker.server, "TIERGATE_KAFKA_REPLICATION": "1"}
                return _drain(clickhouse.url, num_events, variables, "producer", "consumer")


def fill(data_dir: Path, num_events: int) -> None:
    """Make an outbox of a dead gateway, with `num_events` closed events of the last hour."""
    folder = create_folder(data_dir, "gateway")
    began = datetime.now(UTC) - timedelta(hours=1)
    with closing(Journal.open(folder.path)) as journal:
        for first in range(0, num_events, _FILL):
            batch = []
            for number in range(first, min(first + _FILL, num_events)):
                at = began + timedelta(hours=number / num_events)
                tenant_id, num_tokens = f"tenant-{number % NUM_TENANTS}", number % 500
                event = make_event(new_request_id(at), tenant_id=tenant_id, timestamp=at, completion_tokens=num_tokens)
                batch.append(encode_event(event))
            journal.write((), (), batch)
    folder.release()


@contextmanager
def running(variables: Mapping[str, str], *commands: str) -> Iterator[dict[str, int]]:
    """Runs the commands, and yields command -> process id."""
    processes = {}
    try:
        for command in commands:
            arguments = [sys.executable, "-m", "tiergate", command, "--log-level", "warning"]
            processes[command] = subprocess.Popen(arguments, env=clean_environment() | dict(variables))
        yield {command: process.pid for command, process in processes.items()}
    finally:
        for process in processes.values():
            process.send_signal(signal.SIGTERM)
        for process in processes.values():
            process.wait(timeout=60)


def _drain(url: str, num_events: int, variables: Mapping[str, str], *commands: str) -> dict[str, Any]:
    with connect_migrated(url) as client:

        def ask(what: str) -> int:
            return int(client.query(f"SELECT {what} FROM usage_events").result_rows[0][0])

        with running(variables, *commands) as pids:
            began = _until_first_row(lambda: ask("count()"))
            # Rows that arrived before the clock was started are not counted.
            num_before, deadline = ask("count()"), began + DEADLINE_S
            while (num_rows := ask("count()")) < num_events and time.monotonic() < deadline:
                time.sleep(_LOOK_S)
            took_s = time.monotonic() - began
            cpu_s = {command: round(_cpu_s(pid), 1) for command, pid in pids.items()}
        wanted = sum(number % 500 for number in range(num_events))
        return {
            "events": num_events,
            "events_per_s": round((num_rows - num_before) / took_s),
            "took_s": round(took_s, 1),
            "cpu_s": cpu_s,
            "missing": num_events - ask("uniqExact(tenant_id, request_id)"),
            "tokens_missing": wanted - int(client.query(_TOKENS).result_rows[0][0]),
        }


_TOKENS = "SELECT sum(completion_tokens) FROM usage_events FINAL"


def _until_first_row(count: Callable[[], int]) -> float:
    """Wait for the first row, and return its time. Raises TimeoutError."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if count():
            return time.monotonic()
        time.sleep(0.02)
    raise TimeoutError("no row arrives")


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main()
