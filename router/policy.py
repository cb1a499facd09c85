"""From a request, its tier and the fleet to one pool and an order of replicas to try."""

from collections.abc import Mapping
from typing import Literal

import msgspec

from router.balance import order
from router.complexity import DEFAULT_THRESHOLD
from router.errors import DoesNotFit, NoReplica, PoolNotAllowed, Saturated, UnknownModel
from router.fleet import AUTO, LARGE, SMALL, Fleet, Member, Pool, is_saturated, usable_members

Reason = Literal["requested", "simple", "complex", "saturated", "unavailable"]
OnSaturation = Literal["fallback", "queue", "reject"]
RETRY_AFTER_S = 1.0


class RouteRequest(msgspec.Struct, kw_only=True, frozen=True):
    """`variants` maps a pool to the adapter's name at its members; None when no adapter is asked for.

    can_move: another pool may stand in for the one that was named.
    """

    request_id: str
    model: str
    variants: Mapping[str, str] | None = None
    complexity: float = 0.0
    prompt_tokens: int = 0
    max_tokens: int = 0
    can_move: bool = True


class TierPolicy(msgspec.Struct, kw_only=True, frozen=True):
    """`allowed_pools` None means all. A best-effort tier is never sent to a saturated pool."""

    name: str
    complexity_threshold: float = DEFAULT_THRESHOLD
    allowed_pools: frozenset[str] | None = None
    on_saturation: OnSaturation = "fallback"
    best_effort: bool = False


class Decision(msgspec.Struct, kw_only=True, frozen=True):
    """`members` are best first; those after the first are for retries before any token was sent."""

    pool: str
    model_id: str
    adapter: str | None
    members: tuple[Member, ...]
    reason: Reason
    complexity: float


class _Choice(msgspec.Struct, frozen=True):
    """`adapter`: its name at the pool's members, where one is asked for."""

    pool: Pool
    adapter: str | None
    members: tuple[Member, ...]


def decide(request: RouteRequest, tier: TierPolicy, fleet: Fleet) -> Decision:
    """Raises UnknownModel, PoolNotAllowed, DoesNotFit, NoReplica or Saturated, in that order of cause."""
    pools, reason = _candidates(request, tier, fleet)
    choices = []
    for pool in pools:
        adapter = None if request.variants is None else request.variants[pool.name]
        members = usable_members(pool, adapter=adapter)
        if members:
            choices.append(_Choice(pool, adapter, members))
    if not choices:
        # The client's own name for the model: an adapter's name at its members is nobody else's business.
        raise NoReplica(f"no healthy replica serves {request.model!r} right now")
    is_wanted_up = choices[0].pool is pools[0]
    chosen = _pick(choices, tier, is_wanted_up=is_wanted_up)
    if chosen.pool is not pools[0]:
        reason = "saturated" if is_wanted_up else "unavailable"
    return Decision(
        pool=chosen.pool.name,
        model_id=chosen.pool.model_id,
        adapter=chosen.adapter,
        members=order(chosen.members, request_id=request.request_id),
        reason=reason,
        complexity=request.complexity,
    )


def possible_pools(request: RouteRequest, tier: TierPolicy, fleet: Fleet) -> tuple[Pool, ...]:
    """Every pool that `decide` may end in, the wanted one first: what a reservation has to cover. Raises as it does."""
    return _candidates(request, tier, fleet)[0]


def _pick(choices: list[_Choice], tier: TierPolicy, *, is_wanted_up: bool) -> _Choice:
    """The first choice that has room; when none has, the first one, unless the tier is refused there."""
    first = choices[0]
    reachable = choices if tier.on_saturation == "fallback" or not is_wanted_up else choices[:1]
    for choice in reachable:
        for member in choice.members:
            if not is_saturated(member):
                return choice
    if tier.best_effort or tier.on_saturation == "reject":
        raise Saturated(
            f"every replica that may serve this request is busy, retry in {RETRY_AFTER_S:g} s", RETRY_AFTER_S
        )
    return first


def _candidates(request: RouteRequest, tier: TierPolicy, fleet: Fleet) -> tuple[tuple[Pool, ...], Reason]:
    """The pools that may serve the request, the wanted one first, and why that one is wanted."""
    named = fleet.pool_serving(request.model) if request.variants is None else None
    if named is not None:
        return _requested(named, request, tier, fleet), "requested"
    if request.variants is None and request.model != AUTO:
        raise UnknownModel(f"there is no model {request.model!r}")
    names = (SMALL, LARGE) if request.variants is None else request.variants
    pools = tuple(fleet.pools[name] for name in names if name in fleet.pools)
    if not pools:
        raise UnknownModel(f"no pool serves {request.model!r}")
    pools = _fitting(request, _allowed(pools, request, tier))
    is_complex = request.complexity >= tier.complexity_threshold
    by_wish = sorted(pools, key=lambda pool: (pool.name == LARGE) != is_complex)
    if len(pools) == 1 and request.variants is not None:
        return pools, "requested"
    return tuple(by_wish), "complex" if by_wish[0].name == LARGE else "simple"


def _requested(named: Pool, request: RouteRequest, tier: TierPolicy, fleet: Fleet) -> tuple[Pool, ...]:
    """A pool asked for by name must itself be allowed and wide enough; only load and health may move the request."""
    _fitting(request, _allowed((named,), request, tier))
    if named.name not in (SMALL, LARGE) or not request.can_move:
        return (named,)
    other = fleet.pools.get(SMALL if named.name == LARGE else LARGE)
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
        raise DoesNotFit(
            f"{request.prompt_tokens} prompt tokens and {request.max_tokens} for the answer do not fit into the "
            f"context window of {window} tokens"
        )
    return fitting


def _is_allowed(pool: Pool, tier: TierPolicy) -> bool:
    return tier.allowed_pools is None or pool.name in tier.allowed_pools


def _fits(pool: Pool, request: RouteRequest) -> bool:
    return request.prompt_tokens + request.max_tokens <= pool.context_window
