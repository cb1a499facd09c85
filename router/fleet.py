"""An immutable picture of the pools and replicas that can serve requests now. The gateway draws it; the router reads
it."""

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
    """One replica in the gateway's picture. `load` is None for servers that do not report it.

    All fields are as old as the picture, except `in_flight`, which stays live. Reports are not trusted blindly: counts
    may be negative, and more than one registration may name the same server.
    """

    worker_id: str
    url: str
    engine: EngineKind = "tiergate"
    model_name: str
    lacks: frozenset[str] = frozenset()
    """Features of OpenAI's API that the member would ignore or fail at."""
    load: LoadReport | None = None
    age_s: float = 0.0
    """Age of `load` when the picture was drawn, by the gateway's own clock since it received the report."""
    is_healthy: bool = True
    is_on_trial: bool = False
    """The circuit breaker is half open: one request of this process at a time probes whether the replica is healthy."""
    is_drained: bool = False
    """An operator has drained the replica: it gets no new requests."""
    weight: float = 1.0
    """The fraction of its fair load that the replica gets, above 0 and up to 1: below 1 during slow start."""
    recent_ttft_ms: float | None = None
    """Time from sending to the first token, a moving average of the last seconds; None if nothing was measured."""
    in_flight: InFlight = msgspec.field(default_factory=InFlight)
    """This gateway process's own requests at the member; the same object in every picture."""
    own_unanswered: int = 0
    """The count of `in_flight` when `load` arrived, likewise `own_streaming`: the report includes these requests."""
    own_streaming: int = 0


class Pool(msgspec.Struct, kw_only=True, frozen=True, dict=True):
    """Replicas of one model. `adapters`: adapter names as used at the members."""

    name: str
    model_id: str
    context_window: int
    kind: PoolKind = "chat"
    members: tuple[Member, ...] = ()
    adapters: frozenset[str] = frozenset()
    prices: tuple[int, int, int, int] | None = None
    """Prices of a prompt token, a cached prompt token and an answer token, and the minimum per request, in 1e-9
    dollars; None: not priced."""

    overflow_of: str | None = None
    """The pool whose overflow this one, an external provider, takes. Clients cannot ask for it by name."""

    @cached_property
    def replicas(self) -> Replicas:
        """Computed once per picture, by the first decision that needs it."""
        return Replicas(self.members)

    @cached_property
    def lacks(self) -> frozenset[str]:
        """Features that a request may not use, because it may be sent to any of the members."""
        return frozenset[str]().union(*[member.lacks for member in self.members])


class Fleet(msgspec.Struct, kw_only=True, frozen=True, dict=True):
    pools: Mapping[str, Pool]

    @cached_property
    def _by_name(self) -> Mapping[str, Pool]:
        """Pools that clients may ask for, by model id and by name; a name takes precedence."""
        asked = [pool for pool in self.pools.values() if pool.overflow_of is None]
        # Among pools with the same model the first listed one wins.
        return {pool.model_id: pool for pool in reversed(asked)} | {pool.name: pool for pool in asked}

    @cached_property
    def _overflows(self) -> Mapping[str, Pool]:
        pools = reversed(list(self.pools.values()))
        return {pool.overflow_of: pool for pool in pools if pool.overflow_of is not None}

    def pool_serving(self, model: str) -> Pool | None:
        """The pool that a client asked for by its name or by its model id."""
        return self._by_name.get(model)

    def overflow_of(self, pool: Pool) -> Pool | None:
        return self._overflows.get(pool.name)


def usable_members(pool: Pool, *, adapter: str | None = None) -> tuple[Member, ...]:
    """Members that are up and serve the requested adapter, if any; `adapter` is its name at the members.

    A server that does not report its load does not report its adapters either, and is assumed to serve the adapter.
    """
    # Plain conditions, because calls would cost more than all the rest of a decision.
    return tuple(
        [
            member
            for member in pool.members
            if member.is_healthy
            and not member.is_drained
            and ((load := member.load) is None or (not load.is_draining and (adapter is None or load.serves(adapter))))
        ]
    )
