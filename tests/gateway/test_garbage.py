import subprocess
import sys

import pytest

from gateway.garbage import LEAST_GARBAGE, OBJECTS_A_REQUEST, generation_due, is_due

SCENE = """
import asyncio, gc, sys
from gateway.garbage import LOOK_S, LEAST_GARBAGE, OBJECTS_A_REQUEST, GarbageCollector

looks, num_under_way = [], 0
gc.callbacks.append(lambda phase, info: looks.append(info) if phase == "stop" else None)

def cycle():
    one, other = [], []
    one.append(other)
    other.append(one)

async def main():
    global num_under_way
    GarbageCollector(lambda: num_under_way * OBJECTS_A_REQUEST).start(asyncio.get_running_loop())
    looks.clear()
    num_under_way = 4000
    theirs = [[] for _ in range(num_under_way * OBJECTS_A_REQUEST)]
    await asyncio.sleep(3 * LOOK_S)
    print(len(looks))
    theirs.clear()
    num_under_way = 0
    for _ in range(LEAST_GARBAGE):
        cycle()
    async with asyncio.timeout(60):
        while not looks:
            await asyncio.sleep(0.01)
    print(looks[0]["collected"] >= 2 * LEAST_GARBAGE, gc.isenabled())

    looks.clear()
    num_under_way = 4000
    for _ in range(num_under_way * OBJECTS_A_REQUEST + LEAST_GARBAGE):
        cycle()
    async with asyncio.timeout(60):
        while not looks:
            await asyncio.sleep(0.01)
    num_under_way = 0
    await asyncio.sleep(2 * LOOK_S)
    looks.clear()
    num_under_way = 4000
    theirs = [[] for _ in range(num_under_way * OBJECTS_A_REQUEST)]
    await asyncio.sleep(3 * LOOK_S)
    print(len(looks))

asyncio.run(main())
"""


def test_garbage_is_found_and_requests_under_way_are_none() -> None:
    done = subprocess.run([sys.executable, "-c", SCENE], capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.split() == ["0", "True", "False", "0"], done.stderr


@pytest.mark.parametrize(
    ("num_new", "num_requests", "due"),
    [
        (LEAST_GARBAGE - 1, 0, False),
        (LEAST_GARBAGE, 0, True),
        (LEAST_GARBAGE + 100 * OBJECTS_A_REQUEST, 100, True),
        (9000 * OBJECTS_A_REQUEST, 9000, False),
        (9000 * OBJECTS_A_REQUEST + LEAST_GARBAGE, 9000, False),
        (2 * 9000 * OBJECTS_A_REQUEST, 9000, True),
    ],
)
def test_a_look_is_due_where_there_is_as_much_garbage_as_it_costs(num_new: int, num_requests: int, due: bool) -> None:
    assert is_due(num_new, num_requests * OBJECTS_A_REQUEST) == due


def test_older_objects_are_looked_at_seldom_and_in_a_crowd_more_so() -> None:
    assert [generation_due(young, 0, 0) for young in (0, 19, 20)] == [0, 0, 1]
    assert generation_due(20, 100, 0) == 2
    assert [generation_due(young, 100, 5000 * OBJECTS_A_REQUEST) for young in (20, 200)] == [0, 1]
    assert generation_due(0, 1000, 5000 * OBJECTS_A_REQUEST) == 2
