"""Decides from a request, its tier and the fleet on one pool and the order of replicas to try.

Which other pool may stand in for the wanted one if that has no replica or no room:

| asked for                 | wanted pool has no replica     | wanted pool is saturated                         |
|---------------------------|--------------------------------|--------------------------------------------------|
| `auto`, an adapter's name | any pool that the tier may use | `fallback`: a cheaper one, and for tiers that    |
|                           |                                | are not best-effort also a dearer one            |
| a pool's or model's name  | `fallback`: a cheaper one      | `fallback`: a cheaper one                        |

A pool's overflow, an external provider, comes before every other pool, except for best-effort tiers. For a pool that
the client named it is used only if none of its prices is higher. Requests do not wait at an overflow, and it closes
once its budget is spent.

A pool is cheaper if it comes earlier in the order of pools (small, large) and has no price above the other's. Either
alone could mislead: the order reflects what the operator pays, the prices what the client pays.
"""

from collections.abc import Mapping
from typing import Literal

import msgspec

from protocol.context_window import answer_too_long
from router.balance import Affinity, Candidate, order
from router.complexity import DEFAULT_THRESHOLD
from router.errors import DoesNotFit, NoReplica, PoolNotAllowed, Saturated, UnknownModel
from router.fleet import AUTO, LARGE, SMALL, Fleet, Member, Pool
from router.saturation import PoolState, is_pool_full

Reason = Literal["requested", "simple", "complex", "warm", "saturated", "unavailable"]
OnSaturation = Literal["fallback", "queue", "reject"]
Standing = Literal["open", "saturated", "shedding", "unavailable"]
RETRY_AFTER_S = 1.0
_ORDER = {SMALL: 0, LARGE: 1}
_FREE = (0, 0, 0, 0)


class RouteRequest(msgspec.Struct, kw_only=True, frozen=True):
    """`variants` maps a pool to the adapter's name at its members; None if no adapter is requested.

    is_uncertain: the score is a guess. needs_large: the request is beyond the small pool, whatever its score.
    is_warm: the conversation went to the large pool lately, and stays there.
    can_move: another pool may stand in for the named one. may_leave: an external provider may, too.
    """

    request_id: str
    model: str
    variants: Mapping[str, str] | None = None
    complexity: float = 0.0
    is_uncertain: bool = False
    needs_large: bool = False
    is_warm: bool = False
    prompt_tokens: int = 0
    max_tokens: int = 0
    can_move: bool = True
    may_leave: bool = True
    affinity: Affinity | None = None


class TierPolicy(msgspec.Struct, kw_only=True, frozen=True):
    """`allowed_pools` None means all. A best-effort tier is never sent to a saturated pool.

    uncertain_threshold: replaces `complexity_threshold` for scores that are a guess; None: the same threshold.
    """

    name: str
    complexity_threshold: float = DEFAULT_THRESHOLD
    uncertain_threshold: float | None = None
    allowed_pools: frozenset[str] | None = None
    on_saturation: OnSaturation = "fallback"
    best_effort: bool = False


class PoolLook(msgspec.Struct, frozen=True):
    """The state of a pool that was considered for the request."""

    pool: str
    standing: Standing


class Decision(msgspec.Struct, kw_only=True, frozen=True):
    """`candidates` are best first; all but the first are for retries before any token was sent.

    threshold: the one that the complexity was compared with. pools: those considered, the wanted one first.
    """

    pool: str
    model_id: str
    adapter: str | None
    candidates: tuple[Candidate, ...]
    reason: Reason
    complexity: float
    threshold: float
    pools: tuple[PoolLook, ...]

    @property
    def members(self) -> tuple[Member, ...]:
        return tuple([candidate.member for candidate in self.candidates])


class _Route(msgspec.Struct, frozen=True):
    """The pools that may serve a request, the wanted one first; is_named: the client named that one."""

    pools: tuple[Pool, ...]
    reason: Reason
    is_named: bool


def decide(
    request: RouteRequest, tier: TierPolicy, fleet: Fleet, states: Mapping[str, PoolState] | None = None
) -> Decision:
    """`states`: by pool; a pool without a state is judged by the picture alone.

    Raises the first that applies of UnknownModel, PoolNotAllowed, DoesNotFit, NoReplica and Saturated.
    """
    route = _route(request, tier, fleet)
    wanted = route.pools[0]
    looks: list[PoolLook] = []
    waiting: tuple[Pool, tuple[Candidate, ...]] | None = None
    """The first pool in which the request could wait."""
    refusal: PoolState | None = None
    is_wanted_up = True
    for pool in route.pools:
        if looks and not _may_move(route, tier, wanted, pool, is_wanted_up=is_wanted_up):
            continue
        candidates = _candidates(request, pool)
        state = _state_of(pool, states)
        standing = _standing(candidates, state, tier)
        looks.append(PoolLook(pool.name, standing))
        if standing == "open":
            return _decision(request, tier, route, pool, candidates, looks, is_wanted_up=is_wanted_up)
        if standing == "unavailable":
            is_wanted_up = is_wanted_up and pool is not wanted
        elif pool.overflow_of is None:
            waiting = waiting or (pool, candidates)
            if refusal is None or state.retry_after_s < refusal.retry_after_s:
                refusal = state
    if waiting is None or refusal is None:
        # The message has the client's own name for the model: an adapter's name at the members is internal.
        raise NoReplica(f"no healthy replica serves {request.model!r} right now")
    if tier.best_effort or tier.on_saturation == "reject":
        retry_after_s = refusal.retry_after_s
        raise Saturated(
            f"every replica that may serve this request is busy, retry in {retry_after_s:.0f} s",
            retry_after_s,
            wanted=wanted.name,
        )
    return _decision(request, tier, route, *waiting, looks, is_wanted_up=is_wanted_up)


def possible_pools(request: RouteRequest, tier: TierPolicy, fleet: Fleet) -> tuple[Pool, ...]:
    """Every pool that `decide` may choose, the wanted one first: a reservation must cover all of them. Raises as
    `decide` does."""
    route = _route(request, tier, fleet)
    wanted = route.pools[0]
    return tuple(
        [
            pool
            for pool in route.pools
            if pool is wanted
            or _may_move(route, tier, wanted, pool, is_wanted_up=True)
            or _may_move(route, tier, wanted, pool, is_wanted_up=False)
        ]
    )


def threshold_of(request: RouteRequest, tier: TierPolicy) -> float:
    if request.is_uncertain and tier.uncertain_threshold is not None:
        return tier.uncertain_threshold
    return tier.complexity_threshold


def looks_hard(request: RouteRequest, tier: TierPolicy) -> bool:
    """Whether the request alone calls for the large pool."""
    return request.needs_large or request.complexity >= threshold_of(request, tier)


def is_no_dearer(pool: Pool, than: Pool) -> bool:
    """Compares the order of pools and every price; pools without an order are comparable only if both have prices."""
    if pool.name in _ORDER and than.name in _ORDER:
        if _ORDER[pool.name] >= _ORDER[than.name]:
            return False
    elif pool.prices is None or than.prices is None:
        return False
    # A pool without prices is free.
    return _costs_no_more(pool, than)


def _costs_no_more(pool: Pool, than: Pool) -> bool:
    ours, theirs = pool.prices or _FREE, than.prices or _FREE
    return all(our <= their for our, their in zip(ours, theirs, strict=True))


def _decision(
    request: RouteRequest,
    tier: TierPolicy,
    route: _Route,
    pool: Pool,
    candidates: tuple[Candidate, ...],
    looks: list[PoolLook],
    *,
    is_wanted_up: bool,
) -> Decision:
    reason = route.reason
    if pool is not route.pools[0]:
        reason = "saturated" if is_wanted_up else "unavailable"
    return Decision(
        pool=pool.name,
        model_id=pool.model_id,
        adapter=_adapter(request, pool),
        candidates=candidates,
        reason=reason,
        complexity=request.complexity,
        threshold=threshold_of(request, tier),
        pools=tuple(looks),
    )


def _candidates(request: RouteRequest, pool: Pool) -> tuple[Candidate, ...]:
    return order(pool, request_id=request.request_id, adapter=_adapter(request, pool), affinity=request.affinity)


def _adapter(request: RouteRequest, pool: Pool) -> str | None:
    return None if request.variants is None else request.variants[pool.name]


def _state_of(pool: Pool, states: Mapping[str, PoolState] | None) -> PoolState:
    state = None if states is None else states.get(pool.name)
    if state is None:
        return PoolState(is_saturated=is_pool_full(pool), retry_after_s=RETRY_AFTER_S)
    return state


def _standing(candidates: tuple[Candidate, ...], state: PoolState, tier: TierPolicy) -> Standing:
    if not candidates:
        return "unavailable"
    if state.is_saturated:
        return "saturated"
    return "shedding" if state.is_shedding and tier.best_effort else "open"


def _may_move(route: _Route, tier: TierPolicy, wanted: Pool, other: Pool, *, is_wanted_up: bool) -> bool:
    if other.overflow_of is not None:
        return True
    is_cheaper = is_no_dearer(other, wanted)
    if route.is_named:
        return is_cheaper and tier.on_saturation == "fallback"
    if not is_wanted_up:
        return True
    return tier.on_saturation == "fallback" and (is_cheaper or not tier.best_effort)


def _route(request: RouteRequest, tier: TierPolicy, fleet: Fleet) -> _Route:
    """The route, with the wanted pool's overflow, if the request may use it, right after the wanted pool."""
    route = _own_route(request, tier, fleet)
    wanted = route.pools[0]
    overflow = fleet.overflow_of(wanted)
    if overflow is None or not _may_overflow(request, tier, wanted, overflow, is_named=route.is_named):
        return route
    return _Route((wanted, overflow, *route.pools[1:]), route.reason, route.is_named)


def _may_overflow(request: RouteRequest, tier: TierPolicy, wanted: Pool, overflow: Pool, *, is_named: bool) -> bool:
    """An overflow without prices could not be held to its budget, and an overflow has no adapters."""
    return (
        request.may_leave
        and not tier.best_effort
        and request.variants is None
        and request.can_move
        and overflow.prices is not None
        and _fits(overflow, request)
        and (not is_named or _costs_no_more(overflow, wanted))
    )


def _own_route(request: RouteRequest, tier: TierPolicy, fleet: Fleet) -> _Route:
    named = fleet.pool_serving(request.model) if request.variants is None else None
    if named is not None:
        return _Route(_requested(named, request, tier, fleet), "requested", True)
    if request.variants is None and request.model != AUTO:
        raise UnknownModel(f"there is no model {request.model!r}")
    names = (SMALL, LARGE) if request.variants is None else request.variants
    pools = tuple([fleet.pools[name] for name in names if name in fleet.pools])
    if not pools:
        raise UnknownModel(f"no pool serves {request.model!r}")
    pools = _fitting(request, _allowed(pools, request, tier))
    if len(pools) == 1 and request.variants is not None:
        return _Route(pools, "requested", False)
    is_complex = looks_hard(request, tier)
    wants_large = is_complex or request.is_warm
    by_wish = tuple(sorted(pools, key=lambda pool: (pool.name == LARGE) != wants_large))
    if request.needs_large and by_wish[0].name == LARGE:
        by_wish = by_wish[:1]
    if by_wish[0].name != LARGE:
        return _Route(by_wish, "simple", False)
    return _Route(by_wish, "warm" if request.is_warm and not is_complex else "complex", False)


def _requested(named: Pool, request: RouteRequest, tier: TierPolicy, fleet: Fleet) -> tuple[Pool, ...]:
    """A pool requested by name must itself be allowed and its context window large enough; only load and health may
    move the request to another pool."""
    _fitting(request, _allowed((named,), request, tier))
    if named.name != LARGE or request.needs_large or not request.can_move:
        return (named,)
    other = fleet.pools.get(SMALL)
    can_stand_in = other is not None and _is_allowed(other, tier) and _fits(other, request)
    return (named, other) if other is not None and can_stand_in else (named,)


def _allowed(pools: tuple[Pool, ...], request: RouteRequest, tier: TierPolicy) -> tuple[Pool, ...]:
    allowed = tier.allowed_pools
    if allowed is None:
        return pools
    found = tuple([pool for pool in pools if pool.name in allowed])
    if not found:
        raise PoolNotAllowed(f"the tier {tier.name!r} may not use {request.model!r}")
    return found


def _fitting(request: RouteRequest, pools: tuple[Pool, ...]) -> tuple[Pool, ...]:
    needed = request.prompt_tokens + request.max_tokens
    fitting = tuple([pool for pool in pools if needed <= pool.context_window])
    if not fitting:
        window = max(pool.context_window for pool in pools)
        raise DoesNotFit(answer_too_long(window, request.prompt_tokens, request.max_tokens, "prompt"))
    return fitting


def _is_allowed(pool: Pool, tier: TierPolicy) -> bool:
    return tier.allowed_pools is None or pool.name in tier.allowed_pools


def _fits(pool: Pool, request: RouteRequest) -> bool:
    return request.prompt_tokens + request.max_tokens <= pool.context_window
