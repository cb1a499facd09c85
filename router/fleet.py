"""An immutable picture of what could serve a request right now. The gateway draws it; the router only looks."""

from collections.abc import Mapping
from typing import Literal

import msgspec

from protocol.load import LoadReport

SMALL, LARGE = "small", "large"
"""The two pools that `auto` chooses between."""
AUTO = "auto"
MAX_WAITING = 10
"""A replica with more requests waiting than this is saturated."""

EngineKind = Literal["tiergate", "openai"]
PoolKind = Literal["chat", "embedding"]


class Member(msgspec.Struct, kw_only=True, frozen=True):
    """One replica. `load` is None for servers that do not report theirs; these are trusted while they are healthy."""

    worker_id: str
    url: str
    engine: EngineKind = "tiergate"
    model_name: str
    load: LoadReport | None = None
    is_healthy: bool = True


class Pool(msgspec.Struct, kw_only=True, frozen=True):
    """Replicas of one model. `adapters` are the names that the members know them by."""

    name: str
    model_id: str
    context_window: int
    kind: PoolKind = "chat"
    members: tuple[Member, ...] = ()
    adapters: frozenset[str] = frozenset()


class Fleet(msgspec.Struct, kw_only=True, frozen=True):
    pools: Mapping[str, Pool]

    def pool_serving(self, model: str) -> Pool | None:
        """The pool that a client asked for by its own name or by its model's id."""
        if model in self.pools:
            return self.pools[model]
        for pool in self.pools.values():
            if pool.model_id == model:
                return pool
        return None


def is_saturated(member: Member) -> bool:
    return member.load is not None and member.load.num_waiting > MAX_WAITING


def usable_members(pool: Pool, *, adapter: str | None = None) -> tuple[Member, ...]:
    """Members that are up and, where an adapter is asked for, hold it; `adapter` is its name at the members.

    A server that does not report its load does not report its adapters either: it is trusted.
    """
    # Plain conditions, where calls would cost more than all the rest of a decision.
    return tuple(
        [
            member
            for member in pool.members
            if member.is_healthy
            and (
                (load := member.load) is None
                or (not load.is_draining and (adapter is None or adapter in load.adapters))
            )
        ]
    )
