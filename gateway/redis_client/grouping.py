"""Calls that leave in one turn of the event loop, as commands: those of one group become one call of its script."""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import msgspec
from redis.exceptions import RedisError

from gateway.redis_client.resp import Reply


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """A call of a script that takes any number of steps and answers each of them, with ';' between.

    begin: its arguments before them, encoded; num_parts: how many those are."""

    begin: bytes
    num_parts: int


class Call(msgspec.Struct, eq=False):
    command: bytes
    """Whole, or, of a group, a step of so many parts."""
    future: "asyncio.Future[Reply]"
    tick: int
    group: Group | None = None
    num_parts: int = 0
    num_together: int = 1
    """Of the first in a command: how many it answers."""
    is_late: bool = False
    is_repeated: bool = False
    then: Callable[[Reply | RedisError], None] | None = None
    """Told of what comes after the deadline."""


def commands_of(calls: Iterable[Call]) -> tuple[list[Call], list[bytes]]:
    """The calls in the order in which they are answered, and the bytes to write.

    No call passes one that is in no group, and those of a group keep their order.
    """
    ordered: list[Call] = []
    commands: list[bytes] = []
    groups: dict[Group, list[Call]] = {}

    def end_groups() -> None:
        for group, steps in groups.items():
            steps[0].num_together = len(steps)
            num_parts = group.num_parts + sum([step.num_parts for step in steps])
            commands.append(b"*%d\r\n%b" % (num_parts, group.begin))
            commands.extend([step.command for step in steps])
            ordered.extend(steps)
        groups.clear()

    for call in calls:
        if call.group is not None:
            groups.setdefault(call.group, []).append(call)
        else:
            end_groups()
            ordered.append(call)
            commands.append(call.command)
    end_groups()
    return ordered, commands
