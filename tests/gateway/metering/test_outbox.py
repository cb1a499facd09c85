import asyncio
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.metering.adoption import adopt_orphans
from gateway.metering.folders import create_folder, list_folders, take_orphan
from gateway.metering.journal import Journal, Progress, encode_event
from gateway.metering.outbox import Outbox, OutboxFailed, OutboxFull
from protocol.usage import PriceLine, UsageEvent
from tests.support.events import OpenEvent, make_event
from tests.support.gateways import eventually

DEADLINE_S = 20


def closed_events(data_dir: Path) -> list[UsageEvent]:
    found = []
    for folder in list_folders(data_dir):
        journal = Journal.open(folder, must_exist=True)
        found += [closed.event for closed in journal.read_closed(100_000)]
        journal.close()
    return found


async def test_an_awaited_close_is_on_the_disk(tmp_path: Path) -> None:
    async with Outbox(tmp_path, "one") as outbox:
        outbox.open(OpenEvent(make_event("r1", completion_tokens=0)))
        await outbox.close(make_event("r1"))
        assert closed_events(tmp_path) == [make_event("r1")]
        assert outbox.num_under_way == 0


async def test_closes_that_wait_together_share_commits(tmp_path: Path) -> None:
    async with Outbox(tmp_path, "one") as outbox:
        await asyncio.gather(*(outbox.close(make_event(f"r{i}")) for i in range(500)))
        assert outbox.num_closed == 500
        assert outbox.num_commits <= 5


async def test_closes_of_consecutive_iterations_share_a_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.gathering.MAX_S", DEADLINE_S)
    async with Outbox(tmp_path, "one") as outbox:
        for i in range(4):
            outbox.open(OpenEvent(make_event(f"r{i}")))
        closes = []
        for i in range(4):
            closes.append(outbox.close(make_event(f"r{i}")))
            await asyncio.sleep(0)
        await asyncio.gather(*closes)
        assert outbox.num_commits == 1


async def test_closes_that_never_cease_are_written_meanwhile(tmp_path: Path) -> None:
    num_open = 20_000
    async with Outbox(tmp_path, "one") as outbox, asyncio.timeout(DEADLINE_S):
        for i in range(num_open):
            outbox.open(OpenEvent(make_event(f"r{i}")))
        first = outbox.close(make_event("r0"))
        num_closed = 1
        while not first.done() and num_closed < num_open - 1:
            outbox.close(make_event(f"r{num_closed}"))
            num_closed += 1
            await asyncio.sleep(0)
        assert first.done()


async def test_a_close_during_the_last_write_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, may_write = threading.Event(), threading.Event()

    def write(journal: Journal, *batch: Any) -> None:
        begun.set()
        may_write.wait(DEADLINE_S)
        _write(journal, *batch)

    _write = Journal.write
    outbox = Outbox(tmp_path, "one")
    await outbox.__aenter__()
    monkeypatch.setattr(Journal, "write", write)
    for request_id in ("r1", "r2", "r3"):
        outbox.open(OpenEvent(make_event(request_id)))
    ending = asyncio.create_task(outbox.__aexit__(None, None, None))
    await asyncio.to_thread(begun.wait, DEADLINE_S)
    closed = outbox.close(make_event("r2"))
    may_write.set()
    await asyncio.wait_for(ending, DEADLINE_S)
    assert closed.done()
    assert [event.request_id for event in closed_events(tmp_path)] == ["r2"]


async def test_a_close_after_the_last_write_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, may_finish = threading.Event(), threading.Event()

    def finish(outbox: Outbox) -> None:
        begun.set()
        may_finish.wait(DEADLINE_S)
        _finish(outbox)

    _finish = Outbox._finish
    monkeypatch.setattr(Outbox, "_finish", finish)
    outbox = Outbox(tmp_path, "one")
    await outbox.__aenter__()
    ending = asyncio.create_task(outbox.__aexit__(None, None, None))
    await asyncio.to_thread(begun.wait, DEADLINE_S)
    outbox.close(make_event("r1"))
    may_finish.set()
    await asyncio.wait_for(ending, DEADLINE_S)
    assert [event.request_id for event in closed_events(tmp_path)] == ["r1"]


async def test_a_lone_close_that_is_being_written_is_corrected_by_a_second(tmp_path: Path) -> None:
    async with Outbox(tmp_path, "one") as outbox:
        outbox.open(OpenEvent(make_event("r1")))
        outbox.close(make_event("r1"))
        await outbox.close(make_event("r1", status="error", cost_nanousd=0))
        assert [event.status for event in closed_events(tmp_path)][-1] == "error"
        assert outbox.num_under_way == 0


async def test_a_close_whose_waiter_was_cancelled_is_written_all_the_same(tmp_path: Path) -> None:
    async with Outbox(tmp_path, "one") as outbox:
        outbox.close(make_event("r1")).cancel()
        await outbox.close(make_event("r2"))
    assert [event.request_id for event in closed_events(tmp_path)] == ["r1", "r2"]


async def test_a_clean_stop_with_nothing_left_removes_the_folder(tmp_path: Path) -> None:
    async with Outbox(tmp_path, "one"):
        assert [path.name for path in list_folders(tmp_path)] == ["one"]
    assert list_folders(tmp_path) == []


async def test_a_clean_stop_keeps_what_was_not_shipped(tmp_path: Path) -> None:
    async with Outbox(tmp_path, "one") as outbox:
        outbox.close(make_event("r1"))
    assert closed_events(tmp_path) == [make_event("r1")]


async def test_open_is_refused_beyond_the_bound_and_close_makes_room(tmp_path: Path) -> None:
    async with Outbox(tmp_path, "one", max_under_way=1) as outbox:
        outbox.open(OpenEvent(make_event("r1")))
        with pytest.raises(OutboxFull):
            outbox.open(OpenEvent(make_event("r2")))
        await outbox.close(make_event("r1"))
        outbox.open(OpenEvent(make_event("r2")))


async def test_the_folder_of_a_living_gateway_is_not_adopted(tmp_path: Path) -> None:
    async with Outbox(tmp_path, "one") as outbox:
        outbox.open(OpenEvent(make_event("r1")))
        assert adopt_orphans(tmp_path) == 0
        assert take_orphan(tmp_path / "outbox" / "one") is None


async def test_a_failing_disk_fails_the_close_and_the_event_is_written_when_it_recovers(tmp_path: Path) -> None:
    async with Outbox(tmp_path, "one") as outbox:
        await outbox.close(make_event("r1"))
        execute(tmp_path, "ALTER TABLE closed RENAME TO away")
        with pytest.raises(OutboxFailed):
            await asyncio.wait_for(outbox.close(make_event("r2")), DEADLINE_S)
        assert outbox.failure is not None
        execute(tmp_path, "ALTER TABLE away RENAME TO closed")
        await _until_recovered(outbox)
        assert outbox.failure is None
    assert [event.request_id for event in closed_events(tmp_path)][:2] == ["r1", "r2"]


async def test_a_disk_that_fails_for_a_note_of_progress_alone_is_tried_until_it_recovers(tmp_path: Path) -> None:
    """What is noted is not kept, so that nothing waits to be written; and no request may begin meanwhile."""
    async with Outbox(tmp_path, "one") as outbox, asyncio.timeout(DEADLINE_S), asyncio.TaskGroup() as group:
        request = OpenEvent(make_event("r1", completion_tokens=1))
        outbox.open(request)
        keeping = group.create_task(outbox.keep_forever())
        # The note, and the count of what was admitted.
        await _until(lambda: outbox.num_commits >= 2)
        execute(tmp_path, "CREATE TRIGGER no BEFORE INSERT ON progress BEGIN SELECT RAISE(FAIL, 'full'); END")
        request.go_on(completion_tokens=2, cost_nanousd=2)
        await _until(lambda: outbox.failure is not None)
        execute(tmp_path, "DROP TRIGGER no")
        await _until(lambda: outbox.failure is None)
        await outbox.close(make_event("r1"))
        keeping.cancel()


def execute(data_dir: Path, statement: str) -> None:
    with closing(sqlite3.connect(data_dir / "outbox" / "one" / "events.sqlite", isolation_level=None)) as other:
        other.execute(statement)


async def _until(condition: Callable[[], object]) -> None:
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0.01)


async def test_an_event_that_cannot_be_written_fails_alone(tmp_path: Path) -> None:
    async with Outbox(tmp_path, "one") as outbox:
        with pytest.raises(UnicodeEncodeError):
            outbox.close(make_event("r1", user_id="\ud800"))
        outbox.open(OpenEvent(make_event("r2")))
        await outbox.close(make_event("r3"))
    assert adopt_orphans(tmp_path) == 1


async def test_a_second_close_corrects_the_first(tmp_path: Path) -> None:
    async with Outbox(tmp_path, "one") as outbox:
        # Another one, so that the first close may still be waiting for company.
        outbox.open(OpenEvent(make_event("r2")))
        outbox.close(make_event("r1"))
        await outbox.close(make_event("r1", status="error", cost_nanousd=0))
        assert [event.status for event in closed_events(tmp_path)] == ["error"]
        assert outbox.num_under_way == 1


async def test_a_writer_that_dies_ends_what_runs_beside_the_server(tmp_path: Path) -> None:
    async with Outbox(tmp_path, "one") as outbox:
        outbox._journal = None  # type: ignore[assignment]
        outbox.close(make_event("r1"))
        async with asyncio.timeout(DEADLINE_S):
            with pytest.raises(AttributeError):
                await outbox.keep_forever()
        outbox._journal = Journal.open(tmp_path / "outbox" / "one")


@pytest.mark.parametrize("is_over", [True, False])
async def test_what_a_dead_writer_leaves_is_written_at_the_end_or_at_least_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, *, is_over: bool
) -> None:
    """is_over: the journal can be written again."""

    def die(*_: object) -> None:
        raise MemoryError

    with monkeypatch.context() as patched:
        async with Outbox(tmp_path, "one") as outbox:
            patched.setattr(Journal, "write", die)
            refused = outbox.close(make_event("r1"))
            async with asyncio.timeout(DEADLINE_S):
                with pytest.raises(MemoryError):
                    await outbox.keep_forever()
            with pytest.raises(OutboxFailed):
                await refused
            outbox.close(make_event("r2"))
            await asyncio.sleep(0)
            if is_over:
                patched.undo()
    if is_over:
        assert [event.request_id for event in closed_events(tmp_path)] == ["r1", "r2"]
    else:
        told = [record.message for record in caplog.records if record.levelname == "CRITICAL"]
        assert len(told) == 2 and "r1" in told[0] and "r2" in told[1]


async def test_a_request_that_ends_at_once_is_never_noted_as_under_way(tmp_path: Path) -> None:
    async with Outbox(tmp_path, "one") as outbox:
        request = OpenEvent(make_event("r1"))
        outbox.open(request)
        await outbox.close(make_event("r1"))
        assert request.num_asked == 0


async def test_a_request_is_noted_once_it_has_seen_two_looks(tmp_path: Path) -> None:
    async with Outbox(tmp_path, "one") as outbox:
        first, second, brief = (OpenEvent(make_event(name)) for name in ("first", "second", "brief"))
        outbox.open(first)
        outbox.open(brief)
        outbox._note_aging()
        outbox.open(second)
        await outbox.close(make_event("brief"))
        outbox._note_aging()
        assert [each.num_asked for each in (first, second, brief)] == [1, 0, 0]
        await outbox.close(make_event("first"))
        await outbox.close(make_event("second"))
    assert adopt_orphans(tmp_path) == 0


async def test_a_row_that_is_no_event_is_set_aside(tmp_path: Path) -> None:
    async with Outbox(tmp_path, "one") as outbox:
        await outbox.close(make_event("r1"))
        with sqlite3.connect(tmp_path / "outbox" / "one" / "events.sqlite") as other:
            other.execute("INSERT INTO closed (event) VALUES ('{}')")
        other.close()
        await outbox.close(make_event("r2"))
    assert [event.request_id for event in closed_events(tmp_path)] == ["r1", "r2"]
    journal = Journal.open(tmp_path / "outbox" / "one", must_exist=True)
    assert journal.count_closed() == 2
    journal.close()


def test_what_a_gateway_of_the_first_version_left_under_way_is_billed(tmp_path: Path) -> None:
    folder = tmp_path / "outbox" / "old"
    folder.mkdir(parents=True)
    event = make_event("r1", status="lost", completion_tokens=0, cost_nanousd=100, schema_version=1)
    with closing(sqlite3.connect(folder / "events.sqlite", isolation_level=None)) as old:
        old.execute(
            "CREATE TABLE under_way (request_id TEXT PRIMARY KEY, event BLOB NOT NULL, completion_tokens INTEGER,"
            " cost_nanousd INTEGER) WITHOUT ROWID"
        )
        old.execute("INSERT INTO under_way VALUES ('r1', ?, 7, 800)", (msgspec.json.encode(event),))
    assert adopt_orphans(tmp_path) == 1
    assert closed_events(tmp_path) == [msgspec.structs.replace(event, completion_tokens=7, cost_nanousd=800)]


def test_what_a_gateway_before_notes_had_a_table_of_their_own_left_under_way_is_billed(tmp_path: Path) -> None:
    folder = tmp_path / "outbox" / "old"
    folder.mkdir(parents=True)
    event = make_event("r1", status="lost", completion_tokens=0, cost_nanousd=100)
    lines = (PriceLine(kind="output", quantity=7, unit_price_nanousd=100, amount_nanousd=700),)
    with closing(sqlite3.connect(folder / "events.sqlite", isolation_level=None)) as old:
        old.execute(
            "CREATE TABLE under_way (request_id TEXT PRIMARY KEY, event BLOB NOT NULL, completion_tokens INTEGER,"
            " cost_nanousd INTEGER, price_lines TEXT) WITHOUT ROWID"
        )
        values = (msgspec.json.encode(event), msgspec.json.encode(lines).decode())
        old.execute("INSERT INTO under_way VALUES ('r1', ?, 7, NULL, ?)", values)
    assert adopt_orphans(tmp_path) == 1
    expected = msgspec.structs.replace(event, completion_tokens=7, cost_nanousd=700, price_lines=lines)
    assert closed_events(tmp_path) == [expected]


async def test_the_last_note_of_progress_counts_and_goes_with_its_request(tmp_path: Path) -> None:
    journal = Journal.open(create_folder(tmp_path, "one").path)
    line = PriceLine(kind="output", quantity=1, unit_price_nanousd=100, amount_nanousd=100)
    events = [make_event(name, completion_tokens=0) for name in ("kept", "over")]
    journal.write(opened=[(event.request_id, encode_event(event)) for event in events])
    for tokens in (1, 2):
        lines = (msgspec.structs.replace(line, quantity=tokens, amount_nanousd=100 * tokens),)
        journal.write(progress=[Progress(event.request_id, tokens, lines) for event in events])
    journal.write(closed=[encode_event(events[1])], forgotten=["over"])
    notes = "SELECT request_id, completion_tokens FROM progress"
    assert journal._connection.execute(notes).fetchall() == [("kept", 2)]
    assert len(journal.close_lost()) == 1
    assert journal._connection.execute(notes).fetchall() == []
    lost = journal.read_closed(10)[1].event
    assert (lost.status, lost.completion_tokens, lost.cost_nanousd) == ("lost", 2, 200)
    journal.close()


async def test_a_count_beyond_what_the_disk_takes_ends_nothing(tmp_path: Path) -> None:
    async with Outbox(tmp_path, "one") as outbox, asyncio.TaskGroup() as group:
        keeping = group.create_task(outbox.keep_forever())
        absurd = OpenEvent(make_event("absurd", completion_tokens=0))
        outbox.open(absurd)
        await eventually(lambda: "absurd" in outbox._noted)
        absurd.go_on(completion_tokens=2**63, cost_nanousd=1)
        await eventually(lambda: outbox.failure is not None)
        await eventually(lambda: outbox.failure is None)
        await outbox.close(make_event("another"))
        keeping.cancel()
    assert "another" in [event.request_id for event in closed_events(tmp_path)]


CRASHING_GATEWAY = """
import asyncio, sys
from pathlib import Path
from gateway.metering.outbox import Outbox
from tests.support.events import OpenEvent, make_event

async def main():
    async with Outbox(Path(sys.argv[1]), "crashed") as outbox:
        outbox.open(OpenEvent(make_event("under-way", completion_tokens=0, cost_nanousd=100)))
        streaming = OpenEvent(make_event("streaming", completion_tokens=0, cost_nanousd=100))
        outbox.open(streaming)
        await asyncio.sleep(0.05)
        streaming.go_on(completion_tokens=7, cost_nanousd=800)
        async with asyncio.TaskGroup() as group:
            group.create_task(outbox.keep_forever())
            while outbox._noted["streaming"] != 7:
                await asyncio.sleep(0.01)
            for lane in range(8):
                group.create_task(close_for_ever(outbox, lane))

async def close_for_ever(outbox, lane):
    i = 0
    while True:
        request_id = f"{lane}-{i}"
        outbox.open(OpenEvent(make_event(request_id, completion_tokens=0)))
        await outbox.close(make_event(request_id))
        print(request_id, flush=True)
        i += 1

asyncio.run(main())
"""


def test_kill_9_keeps_every_acknowledged_close_and_turns_the_rest_into_lost(tmp_path: Path) -> None:
    command = [sys.executable, "-c", CRASHING_GATEWAY, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        acknowledged = [process.stdout.readline().strip() for _ in range(200)]
        process.send_signal(signal.SIGKILL)
        acknowledged += [line.strip() for line in process.stdout if line.endswith("\n")]

    num_lost = adopt_orphans(tmp_path)

    by_id = {event.request_id: event for event in closed_events(tmp_path)}
    assert len(closed_events(tmp_path)) == len(by_id), "an event stands there twice"
    assert all(by_id[request_id].status == "ok" for request_id in acknowledged)
    assert num_lost == sum(event.status == "lost" for event in by_id.values()) >= 2
    assert by_id["under-way"] == make_event("under-way", status="lost", completion_tokens=0, cost_nanousd=100)
    assert by_id["streaming"] == msgspec.structs.replace(
        by_id["under-way"],
        request_id="streaming",
        completion_tokens=7,
        cost_nanousd=800,
        price_lines=(PriceLine(kind="output", quantity=1, unit_price_nanousd=800, amount_nanousd=800),),
    )
    assert adopt_orphans(tmp_path) == 0, "adopting again finds nothing new"


async def _until_recovered(outbox: Outbox) -> None:
    """A close behind the refused one is durable only after it."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            try:
                return await outbox.close(make_event("r3"))
            except OutboxFailed:
                continue


@settings(max_examples=25, deadline=None)
@given(st.sets(st.integers(1, 60), max_size=60))
def test_exactly_what_was_shipped_is_deleted(seqs: set[int]) -> None:
    with tempfile.TemporaryDirectory() as folder, closing(Journal.open(Path(folder))) as journal:
        journal.write(closed=[encode_event(make_event(f"r{i}")) for i in range(1, 61)])
        journal.delete_closed(seqs)
        assert {seq for seq, _ in journal.read_encoded(100)} == set(range(1, 61)) - seqs
