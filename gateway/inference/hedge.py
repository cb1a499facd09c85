"""A first token that is late is asked of a second replica, too; whoever speaks first answers.

The other is left, computes nothing more, and is not billed. Only for tiers that are hedged, and only as often as a
pool's retry budget allows.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from gateway.inference.call import Call
from gateway.upstream.client import MemberFailed

Speaking = Coroutine[Any, Any, None]


async def first_to_speak(
    first: Call,
    speaking: Speaking,
    second: Callable[[], Call | None],
    *,
    late_s: float,
    note_failed: Callable[[Call, MemberFailed], None],
) -> Call:
    """The call that has its first token first; the other one is left.

    speaking: of the first. second: made when the first is late, if another may be asked. note_failed: told of one that
    failed while the other goes on. Raises what the last one raised.
    """
    calls = {_start(speaking): first}
    winner: Call | None = None
    try:
        done, waiting = await asyncio.wait(calls, timeout=late_s)
        spare = second() if not done else None
        if spare is not None:
            task = _start(spare.speak())
            calls[task] = spare
            waiting.add(task)
        while True:
            for task in [task for task in calls if task in done]:
                try:
                    task.result()
                except MemberFailed as error:
                    done.discard(task)
                    if not (waiting or done):
                        raise
                    note_failed(calls[task], error)
                else:
                    winner = calls[task]
                    return winner
            done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task, call in calls.items():
            if call is not winner:
                task.cancel()
                call.close()


def _start(speaking: Speaking) -> "asyncio.Task[None]":
    task = asyncio.ensure_future(speaking)
    # One that fails after it was left would be reported as never looked at.
    task.add_done_callback(lambda over: over.cancelled() or over.exception())
    return task
