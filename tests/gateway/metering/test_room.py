"""Requests are refused before their usage would find no room."""

import asyncio
from contextlib import closing
from pathlib import Path

import pytest

from gateway.metering.journal import Journal
from gateway.metering.outbox import Outbox, OutboxFull
from gateway.metering.room import OutboxRoom
from tests.support.events import OpenEvent, make_event

MAX_BYTES = 400_000


async def test_open_is_refused_while_too_much_waits_and_again_allowed_once_it_is_shipped(tmp_path: Path) -> None:
    room = OutboxRoom(tmp_path, max_bytes=MAX_BYTES, min_free_bytes=0)
    async with Outbox(tmp_path, "one", room=room) as outbox:
        outbox.open(OpenEvent(make_event("r1")))
        await asyncio.gather(*(outbox.close(make_event(f"r{i}")) for i in range(1000)))
        await room.measure()
        with pytest.raises(OutboxFull, match="bound"):
            outbox.open(OpenEvent(make_event("late")))
        with closing(Journal.open(tmp_path / "outbox" / "one")) as journal:
            journal.delete_closed([closed.seq for closed in journal.read_closed(2000)])
        # The file keeps its size, and what is free in it counts as room; SQLite's log may hold a few pages more.
        loose = OutboxRoom(tmp_path, max_bytes=5_000_000, min_free_bytes=0)
        await loose.measure()
        assert loose.shortage is None


async def test_open_is_refused_on_a_disk_that_is_nearly_full(tmp_path: Path) -> None:
    room = OutboxRoom(tmp_path, max_bytes=MAX_BYTES, min_free_bytes=2**60)
    async with Outbox(tmp_path, "one", room=room) as outbox:
        await room.measure()
        with pytest.raises(OutboxFull, match="disk"):
            outbox.open(OpenEvent(make_event("r1")))
        await outbox.close(make_event("r0"))
