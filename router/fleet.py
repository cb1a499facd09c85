"""An immutable picture of what could serve a request right now. The gateway draws it; the router only looks."""

from collections.abc import Mapping
from functools import cached_property
from typing import Literal

import msgspec

from protocol.load import LoadReport
from router.in_flight import InFlight
from router.replicas import Replicas

SMALL, LARGE = "small", "large"
"""The two pools that `auto` chooses between."""
AUTO = "auto"

EngineKind = Literal["tiergate", "openai"]
PoolKind = Literal["chat", "embedding"]


class Member(msgspec.Struct, kw_only=True, frozen=True):
    """One replica, as the gateway drew it. `load` is None for servers that do not report theirs.

    All of it is as old as the picture, but for `in_flight`, which goes on counting. What members report is not
    believed blindly: counts may be negative, and more than one registration may name the same server.
    """

    worker_id: str
    url: str
    engine: EngineKind = "tiergate"
    model_name: str
    lacks: frozenset[str] = frozenset()
    """What it would ignore or fail at, though OpenAI's API has it."""
    load: LoadReport | None = None
    age_s: float = 0.0
    """How old `load` was when the picture was drawn, by the gateway's own clock since it received it."""
    is_healthy: bool = True
    is_on_trial: bool = False
    """Its circuit breaker is half open: one request of this process at a time finds out whether it is well."""
    is_drained: bool = False
    """An operator keeps new requests away."""
    weight: float = 1.0
    """The share of its fair load that it gets, above 0 and up to 1: less than 1 while a new replica starts slowly."""
    recent_ttft_ms: float | None = None
    """From sending to the first token, a moving average of the last seconds; None where nothing was measured."""
    in_flight: InFlight = msgspec.field(default_factory=InFlight)
    """This gateway process's own requests there, the same object from picture to picture."""
    own_unanswered: int = 0
    """Of `in_flight`, when `load` came: these were counted by the report as well."""
    own_streaming: int = 0


class Pool(msgspec.Struct, kw_only=True, frozen=True, dict=True):
    """Replicas of one model. `adapters` are the names that the members know them by."""

    name: str
    model_id: str
    context_window: int
    kind: PoolKind = "chat"
    members: tuple[Member, ...] = ()
    adapters: frozenset[str] = frozenset()
    prices: tuple[int, int, int, int] | None = None
    """Of a token of the prompt, of a cached one and of the answer, and the least for a request, in 1e-9 dollars; None
    where nobody priced it."""

    overflow_of: str | None = None
    """The pool that this one, a provider outside, takes requests of. No client asks for it by name."""

    @cached_property
    def replicas(self) -> Replicas:
        """Computed by the first decision that needs it, once a picture."""
        return Replicas(self.members)

    @cached_property
    def lacks(self) -> frozenset[str]:
        """What a request may not ask for, since it may come to any of the members."""
        return frozenset[str]().union(*[member.lacks for member in self.members])


class Fleet(msgspec.Struct, kw_only=True, frozen=True, dict=True):
    pools: Mapping[str, Pool]

    @cached_property
    def _by_name(self) -> Mapping[str, Pool]:
        """By model's id and by name, which goes first; of pools that clients may ask for."""
        asked = [pool for pool in self.pools.values() if pool.overflow_of is None]
        # Of two pools with one model the first, as they are listed.
        return {pool.model_id: pool for pool in reversed(asked)} | {pool.name: pool for pool in asked}

    @cached_property
    def _overflows(self) -> Mapping[str, Pool]:
        pools = reversed(list(self.pools.values()))
        return {pool.overflow_of: pool for pool in pools if pool.overflow_of is not None}

    def pool_serving(self, model: str) -> Pool | None:
        """The pool that a client asked for by its own name or by its model's id."""
        return self._by_name.get(model)

    def overflow_of(self, pool: Pool) -> Pool | None:
        return self._overflows.get(pool.name)


def usable_members(pool: Pool, *, adapter: str | None = None) -> tuple[Member, ...]:
    """Members that are up and, where an adapter is asked for, serve it; `adapter` is its name at the members.

    A server that does not report its load does not report its adapters either: it is trusted.
    """
    # Plain conditions, where calls would cost more than all the rest of a decision.
    return tuple(
        [
            member
            for member in pool.members
            if member.is_healthy
            and not member.is_drained
            and ((load := member.load) is None or (not load.is_draining and (adapter is None or load.serves(adapter))))
        ]
    )
