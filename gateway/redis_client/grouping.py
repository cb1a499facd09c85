"""Turns calls that leave together into commands. Calls of one group become one script call."""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import msgspec
from redis.exceptions import RedisError

from gateway.redis_client.resp import Reply


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """A call of a script that takes any number of steps and answers each of them, separated by ';'.

    begin: the encoded arguments before the steps. num_parts: the number of these arguments. is_apart: keeps its order
    with calls of groups that are not."""

    begin: bytes
    num_parts: int
    is_apart: bool = False


class Call(msgspec.Struct, eq=False):
    command: bytes
    """A whole command or, in a group, a step of `num_parts` parts."""
    future: "asyncio.Future[Reply]"
    tick: int
    group: Group | None = None
    num_parts: int = 0
    num_together: int = 1
    """For the first call of a command: how many calls the command's reply answers."""
    is_late: bool = False
    is_repeated: bool = False
    then: Callable[[Reply | RedisError], None] | None = None
    """Called with a reply that comes after the deadline."""


def commands_of(calls: Iterable[Call]) -> tuple[list[Call], list[bytes]]:
    """The calls in the order in which they will be answered, and the bytes to write.

    No call overtakes a call without a group, calls of one group keep their order, and so do those of groups that are
    apart and those of others.
    """
    ordered: list[Call] = []
    commands: list[bytes] = []
    groups: dict[Group, list[Call]] = {}
    is_apart = False

    def end_groups() -> None:
        for group, steps in groups.items():
            steps[0].num_together = len(steps)
            num_parts = group.num_parts + sum([step.num_parts for step in steps])
            commands.append(b"*%d\r\n%b" % (num_parts, group.begin))
            commands.extend([step.command for step in steps])
            ordered.extend(steps)
        groups.clear()

    for call in calls:
        group = call.group
        if group is not None:
            if group.is_apart is not is_apart:
                end_groups()
                is_apart = group.is_apart
            groups.setdefault(group, []).append(call)
        else:
            end_groups()
            ordered.append(call)
            commands.append(call.command)
    end_groups()
    return ordered, commands
