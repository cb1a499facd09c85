"""Each kind of abuse while a normal client runs: the client never fails, and afterwards everything is given back.

How fast the client is meanwhile is measured by `python -m benchmarks.front_door`.
"""

import asyncio
from collections.abc import Iterator

import pytest

from benchmarks.front_door.acts import Victim
from benchmarks.front_door.kinds import ABUSES, Abuse
from tests.support.abused_gateways import AbusedGateway, abused_gateway, ask_until

SECONDS = 1.0
KINDS = [pytest.param(abuse, id=abuse.name, marks=() if abuse.is_short else pytest.mark.long) for abuse in ABUSES]


@pytest.fixture(scope="module")
def abused() -> Iterator[AbusedGateway]:
    with abused_gateway() as running:
        yield running


@pytest.mark.parametrize("abuse", KINDS)
async def test_a_normal_client_does_not_notice_and_everything_comes_back(abused: AbusedGateway, abuse: Abuse) -> None:
    is_over = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        asking = group.create_task(ask_until(abused.target, is_over))
        await abuse.act(Victim(abused.port, str(abused.target.key), abused.target.model, SECONDS))
        is_over.set()
    assert asking.result() > 0
    await asyncio.to_thread(abused.check_all_given_back)
