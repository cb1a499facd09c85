"""Reads that requests wait for: together, few at once, and in turn."""

import asyncio
import time
from collections.abc import Collection

import pytest

from gateway.domain.keys.lookups import BATCH, MAX_READERS, MAX_WAITING, LookupFailed, Lookups
from tests.support.gateways import eventually

PATIENCE_S = 30


class Database:
    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.gate = asyncio.Event()
        self.error: Exception | None = None

    async def read(self, prefixes: Collection[str]) -> None:
        self.batches.append(list(prefixes))
        await self.gate.wait()
        if self.error is not None:
            raise self.error


def ask(lookups: Lookups, *prefixes: str, patience_s: float = PATIENCE_S) -> list["asyncio.Task[None]"]:
    return [asyncio.create_task(lookups.wait_for(prefix, patience_s=patience_s)) for prefix in prefixes]


async def test_few_queries_at_once_take_all_who_wait() -> None:
    database = Database()
    tasks = ask(Lookups(database.read), *(f"p{i}" for i in range(BATCH + 10)))
    await eventually(lambda: len(database.batches) == MAX_READERS)
    database.gate.set()
    await asyncio.gather(*tasks)
    assert sorted(prefix for batch in database.batches for prefix in batch) == sorted(
        f"p{i}" for i in range(BATCH + 10)
    )
    assert len(database.batches) <= MAX_READERS + 1
    assert max(map(len, database.batches)) <= BATCH


async def test_who_asks_after_forget_waits_for_a_query_that_begins_after_it() -> None:
    database = Database()
    lookups = Lookups(database.read)
    before = ask(lookups, "p")
    await eventually(lambda: database.batches)
    lookups.forget()
    after = ask(lookups, "p")
    database.gate.set()
    await asyncio.gather(*before, *after)
    assert database.batches == [["p"], ["p"]]


async def test_a_failure_is_everybodys_who_waited_and_the_next_try_is_new() -> None:
    database = Database()
    database.error = LookupFailed("no database")
    lookups = Lookups(database.read)
    tasks = ask(lookups, "p", "p", "q")
    database.gate.set()
    assert all(isinstance(each, LookupFailed) for each in await asyncio.gather(*tasks, return_exceptions=True))
    database.error = None
    await lookups.wait_for("p", patience_s=PATIENCE_S)


async def test_patience_ends_and_the_reading_goes_on() -> None:
    database = Database()
    lookups = Lookups(database.read)
    with pytest.raises(LookupFailed):
        await lookups.wait_for("p", patience_s=0.01)
    waiting = ask(lookups, "p")
    database.gate.set()
    await asyncio.gather(*waiting)
    assert database.batches == [["p"]]


async def test_an_event_loop_that_was_held_up_has_not_waited_for_the_database() -> None:
    patience_s = 0.2

    async def read(prefixes: Collection[str]) -> None:
        await asyncio.to_thread(list, prefixes)
        # As a driver, which hands its answer on several times.
        for _ in range(10):
            await asyncio.sleep(0)

    def hold_up() -> None:
        until = time.monotonic() + 2 * patience_s
        while time.monotonic() < until:
            pass

    [waiting] = ask(Lookups(read), "p", patience_s=patience_s)
    asyncio.get_running_loop().call_soon(hold_up)
    await waiting


async def test_beyond_the_bound_the_oldest_gives_way() -> None:
    database = Database()
    lookups = Lookups(database.read)
    under_way = ask(lookups, "first", "second")
    await eventually(lambda: sum(map(len, database.batches)) == 2)
    others = ask(lookups, *(f"p{i}" for i in range(MAX_WAITING + 3)))
    await eventually(lambda: any(task.done() for task in others))
    database.gate.set()
    outcomes = await asyncio.gather(*under_way, *others, return_exceptions=True)
    assert [index for index, outcome in enumerate(outcomes) if outcome is not None] == [2, 3, 4]
