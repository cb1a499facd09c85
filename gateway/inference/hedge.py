"""Hedging: when the first token is late, a second replica is asked, too, and the first to produce a token answers.

The other call is closed, so its replica stops computing, and it is not billed. Only hedged tiers do this, and only as
often as the pool's retry budget allows.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from gateway.inference.member_call import MemberCall
from gateway.upstream.client import MemberFailed

Speaking = Coroutine[Any, Any, None]


async def first_to_speak(
    first: MemberCall,
    speaking: Speaking,
    second: Callable[[], MemberCall | None],
    *,
    late_s: float,
    note_failed: Callable[[MemberCall, MemberFailed], None],
) -> MemberCall:
    """The call that produces its first token first; the other one is cancelled and closed.

    speaking: the coroutine that runs `first` up to its first token. second: called when the first is late; returns the
    second call, or None if no other replica may be asked. note_failed: called for a call that failed while the other
    goes on. Raises the last MemberFailed if all calls fail, and any other error at once.
    """
    calls = {_start(speaking): first}
    winner: MemberCall | None = None
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
    # Retrieve the exception of a task that fails after it was abandoned; asyncio would report it as never retrieved.
    task.add_done_callback(lambda over: over.cancelled() or over.exception())
    return task
