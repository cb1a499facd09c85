import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.load import LoadReport
from router.balance import Affinity
from router.errors import DoesNotFit, NoReplica, PoolNotAllowed, RouteError, Saturated, UnknownModel
from router.fleet import Fleet, Member
from router.policy import Decision, PoolLook, RouteRequest, TierPolicy, decide, is_no_dearer, possible_pools
from router.saturation import PoolState, is_pool_full
from tests.support.fleets import fleet, load, member, pool, two_pools

TIER = TierPolicy(name="pro", complexity_threshold=0.5)
Prices = tuple[int, int, int, int] | None
FREE = TierPolicy(name="free", complexity_threshold=0.5, best_effort=True)
BUSY = load(waiting=11)
DOWN = fleet(pool("small", member("s")), pool("large", member("l", is_healthy=False)))


def route(model: str = "auto", **fields: object) -> RouteRequest:
    return RouteRequest(request_id="r", model=model, **fields)  # type: ignore[arg-type]


def outcome(request: RouteRequest, tier: TierPolicy, picture: Fleet) -> tuple[str, str]:
    decision = decide(request, tier, picture)
    return decision.pool, decision.reason


def test_auto_goes_by_the_tiers_threshold() -> None:
    assert outcome(route(complexity=0.49), TIER, two_pools()) == ("small", "simple")
    assert outcome(route(complexity=0.5), TIER, two_pools()) == ("large", "complex")
    generous = TierPolicy(name="enterprise", complexity_threshold=0.2)
    assert outcome(route(complexity=0.3), generous, two_pools()) == ("large", "complex")


@pytest.mark.parametrize("model", ["large", "demo-large"])
def test_a_pool_is_asked_for_by_its_name_or_its_model(model: str) -> None:
    decision = decide(route(model), TIER, two_pools())
    assert (decision.pool, decision.model_id, decision.reason) == ("large", "demo-large", "requested")


@pytest.mark.parametrize(("waiting", "expected"), [(10, ("large", "complex")), (11, ("small", "saturated"))])
def test_more_than_ten_waiting_at_every_replica_moves_the_request(waiting: int, expected: tuple[str, str]) -> None:
    assert outcome(route(complexity=1), TIER, two_pools(large=load(waiting=waiting))) == expected


def test_one_replica_with_room_keeps_the_pool() -> None:
    picture = fleet(pool("small", member("s")), pool("large", member("l1", BUSY), member("l2", load(waiting=10))))
    decision = decide(route(complexity=1), TIER, picture)
    assert (decision.pool, decision.members[0].worker_id) == ("large", "l2")


@pytest.mark.parametrize("down", [member("l", is_healthy=False), member("l", load(is_draining=True))])
def test_a_pool_that_is_down_or_draining_is_left(down: object) -> None:
    picture = fleet(pool("small", member("s")), pool("large", down))  # type: ignore[arg-type]
    assert outcome(route("large"), TIER, picture) == ("small", "unavailable")


def test_what_a_client_names_is_never_replaced_by_a_dearer_pool() -> None:
    down = fleet(pool("small", member("s", is_healthy=False)), pool("large", member("l")))
    for model in ("small", "demo-small"):
        with pytest.raises(NoReplica):
            decide(route(model), TIER, down)
        assert outcome(route(model), TIER, two_pools(small=BUSY)) == ("small", "requested")
        with pytest.raises(Saturated):
            decide(route(model), FREE, two_pools(small=BUSY))
        assert [each.name for each in possible_pools(route(model), TIER, two_pools())] == ["small"]


def test_a_named_pool_is_replaced_by_a_cheaper_one_only_where_the_tier_says_so() -> None:
    for picture, reason in ((DOWN, "unavailable"), (two_pools(large=BUSY), "saturated")):
        assert outcome(route("large"), TIER, picture) == ("small", reason)
    for on_saturation in ("queue", "reject"):
        tier = TierPolicy(name="t", on_saturation=on_saturation)  # type: ignore[arg-type]
        with pytest.raises(NoReplica):
            decide(route("large"), tier, DOWN)
        assert [each.name for each in possible_pools(route("large"), tier, DOWN)] == ["large"]


@pytest.mark.parametrize(
    ("small", "large", "can_stand_in"),
    [
        ((1, 1, 4, 0), (9, 9, 36, 0), True),
        ((9, 9, 36, 5), (9, 9, 36, 5), True),
        ((1, 1, 37, 0), (9, 9, 36, 0), False),
        ((10, 1, 4, 0), (9, 9, 36, 0), False),
        ((1, 1, 4, 1), (9, 9, 36, 0), False),
        (None, (9, 9, 36, 0), True),
        ((1, 1, 4, 0), None, False),
        (None, None, True),
    ],
)
def test_the_smaller_pool_stands_in_only_where_no_price_of_it_is_higher(
    small: Prices, large: Prices, can_stand_in: bool
) -> None:
    cheap, dear = pool("small", member("s"), prices=small), pool("large", member("l", BUSY), prices=large)
    assert is_no_dearer(cheap, dear) is can_stand_in
    expected = ("small", "saturated") if can_stand_in else ("large", "requested")
    assert outcome(route("large"), TIER, fleet(cheap, dear)) == expected
    assert not is_no_dearer(dear, cheap)


def test_auto_leaves_a_pool_that_is_down_but_best_effort_is_not_sent_up_by_load() -> None:
    down = fleet(pool("small", member("s", is_healthy=False)), pool("large", member("l")))
    assert outcome(route(), FREE, down) == ("large", "unavailable")
    assert outcome(route(), TIER, two_pools(small=BUSY)) == ("large", "saturated")
    with pytest.raises(Saturated):
        decide(route(), FREE, two_pools(small=BUSY))


def test_what_needs_the_large_model_is_never_sent_to_the_small_one() -> None:
    hard = route(needs_large=True, complexity=0.0)
    assert outcome(hard, TIER, two_pools()) == ("large", "complex")
    assert outcome(hard, TIER, two_pools(large=BUSY)) == ("large", "complex")
    with pytest.raises(Saturated):
        decide(hard, FREE, two_pools(large=BUSY))
    with pytest.raises(NoReplica):
        decide(hard, TIER, DOWN)
    with pytest.raises(NoReplica):
        decide(route("large", needs_large=True), TIER, DOWN)


def test_a_tier_may_prefer_large_when_the_score_is_a_guess() -> None:
    tier = TierPolicy(name="enterprise", complexity_threshold=0.5, uncertain_threshold=0.2)
    assert outcome(route(complexity=0.3), tier, two_pools()) == ("small", "simple")
    decision = decide(route(complexity=0.3, is_uncertain=True), tier, two_pools())
    assert (decision.pool, decision.reason, decision.threshold) == ("large", "complex", 0.2)
    assert outcome(route(complexity=0.3, is_uncertain=True), TIER, two_pools()) == ("small", "simple")


def with_overflow(large: LoadReport | None = None, **fields: object) -> Fleet:
    dear = pool("large", member("l", large), prices=(9, 9, 36, 0))
    outside = pool("large.overflow", member("cloud"), prices=(9, 9, 30, 0), overflow_of="large")
    return fleet(pool("small", member("s")), dear, msgspec.structs.replace(outside, **fields))


def test_a_pools_overflow_takes_what_it_has_no_room_for() -> None:
    queueing = TierPolicy(name="enterprise", on_saturation="queue")
    for asked in (route("large"), route(complexity=1)):
        assert decide(asked, queueing, with_overflow()).pool == "large"
        assert outcome(asked, queueing, with_overflow(BUSY)) == ("large.overflow", "saturated")
        assert outcome(asked, queueing, with_overflow(load(is_draining=True))) == ("large.overflow", "unavailable")
        assert "large.overflow" in [each.name for each in possible_pools(asked, queueing, with_overflow())]


@pytest.mark.parametrize(
    ("asked", "tier"),
    [
        (route("large", may_leave=False), TIER),
        (route("large"), FREE),
        (route("small"), TIER),
    ],
)
def test_who_may_not_leave_does_not(asked: RouteRequest, tier: TierPolicy) -> None:
    assert "large.overflow" not in [each.name for each in possible_pools(asked, tier, with_overflow(BUSY))]


def test_an_overflow_that_is_dearer_takes_nothing_that_was_asked_for_by_name() -> None:
    dearer = with_overflow(BUSY, prices=(9, 9, 37, 0))
    assert outcome(route("large"), TIER, dearer) == ("small", "saturated")
    assert outcome(route(complexity=1), TIER, dearer) == ("large.overflow", "saturated")
    assert outcome(route(complexity=1), TIER, with_overflow(BUSY, prices=None)) == ("small", "saturated")


def test_an_overflow_has_no_name_that_could_be_asked_for() -> None:
    for name in ("large.overflow", "demo-large.overflow"):
        with pytest.raises(UnknownModel):
            decide(route(name), TIER, with_overflow())


def test_nobody_waits_for_an_overflow_whose_budget_is_spent() -> None:
    spent = {"large.overflow": PoolState(is_saturated=True)}
    queueing = TierPolicy(name="enterprise", on_saturation="queue")
    assert decide(route("large"), queueing, with_overflow(BUSY), spent).pool == "large"
    with pytest.raises(NoReplica):
        decide(route("large"), queueing, with_overflow(load(is_draining=True)), spent)


def test_states_outweigh_the_picture_and_tell_when_to_come_back() -> None:
    closed = {"large": PoolState(is_saturated=True, retry_after_s=9), "small": PoolState(is_saturated=True)}
    with pytest.raises(Saturated) as refused:
        decide(route(complexity=1), FREE, two_pools(), closed)
    assert refused.value.retry_after_s == 1
    assert decide(route(complexity=1), TIER, two_pools(large=BUSY), {"large": PoolState()}).pool == "large"


def test_a_shedding_pool_is_left_by_best_effort_alone() -> None:
    states = {"large": PoolState(is_shedding=True, retry_after_s=3)}
    assert decide(route(complexity=1), TIER, two_pools(), states).pool == "large"
    moved = decide(route(complexity=1), FREE, two_pools(), states)
    assert (moved.pool, moved.reason) == ("small", "saturated")
    assert moved.pools == (PoolLook("large", "shedding"), PoolLook("small", "open"))


def test_a_decision_tells_its_candidates_and_their_loads() -> None:
    picture = fleet(pool("small", member("a", load(waiting=3, running=5)), member("b", load(waiting=1))))
    decision = decide(route("small"), TIER, picture)
    assert [(each.member.worker_id, each.num_waiting, each.num_running) for each in decision.candidates] == [
        ("b", 1, 0),
        ("a", 3, 5),
    ]


def test_what_cannot_move_stays_with_the_pool_it_named() -> None:
    down = fleet(pool("small", member("s")), pool("large", member("l", is_healthy=False)))
    with pytest.raises(NoReplica):
        decide(route("large", can_move=False), TIER, down)
    fixed = route("demo-large", can_move=False)
    assert outcome(fixed, TIER, two_pools(large=BUSY)) == ("large", "requested")
    assert [each.name for each in possible_pools(fixed, TIER, two_pools())] == ["large"]


def test_queueing_tiers_wait_in_the_wanted_pool() -> None:
    tier = TierPolicy(name="pro", on_saturation="queue")
    assert outcome(route(complexity=1), tier, two_pools(large=BUSY)) == ("large", "complex")


def test_rejecting_and_best_effort_tiers_are_refused_when_all_is_saturated() -> None:
    full = two_pools(small=BUSY, large=BUSY)
    assert outcome(route(complexity=1), TIER, full) == ("large", "complex")
    for tier in (TierPolicy(name="free", best_effort=True), TierPolicy(name="t", on_saturation="reject")):
        with pytest.raises(Saturated) as refused:
            decide(route(complexity=1), tier, full)
        assert refused.value.retry_after_s > 0


def test_a_rejecting_tier_does_not_move() -> None:
    with pytest.raises(Saturated):
        decide(route(complexity=1), TierPolicy(name="t", on_saturation="reject"), two_pools(large=BUSY))


def test_a_tier_stays_in_its_pools() -> None:
    tier = TierPolicy(name="free", allowed_pools=frozenset({"small"}))
    assert outcome(route(complexity=1), tier, two_pools()) == ("small", "simple")
    assert outcome(route(complexity=1), tier, two_pools(small=BUSY)) == ("small", "simple")
    with pytest.raises(PoolNotAllowed):
        decide(route("large"), tier, two_pools())


def test_an_adapter_stays_where_it_has_a_variant() -> None:
    only_small = route("pirate", variants={"small": "pirate-s"}, complexity=1)
    decision = decide(only_small, TIER, two_pools(small=load(waiting=11, adapters=("pirate-s",))))
    assert (decision.pool, decision.adapter, decision.reason) == ("small", "pirate-s", "requested")


def test_an_adapter_with_two_variants_is_routed_and_keeps_its_name_there() -> None:
    both = route("pirate", variants={"small": "pirate-s", "large": "pirate-l"}, complexity=1)
    small, large = load(adapters=("pirate-s",)), load(adapters=("pirate-l",))
    assert decide(both, TIER, two_pools(small=small, large=large)).adapter == "pirate-l"
    moved = decide(both, TIER, two_pools(small=small, large=load(waiting=11, adapters=("pirate-l",))))
    assert (moved.adapter, moved.reason) == ("pirate-s", "saturated")


def test_only_replicas_that_hold_the_adapter_are_chosen_however_idle_the_others_are() -> None:
    idle, holder = member("idle"), member("holder", load(waiting=5, running=9, adapters=("x", "pirate-s")))
    decision = decide(route("pirate", variants={"small": "pirate-s"}), TIER, fleet(pool("small", idle, holder)))
    assert [each.worker_id for each in decision.members] == ["holder"]


def test_an_adapter_goes_to_the_pool_whose_replicas_hold_it() -> None:
    both = route("pirate", variants={"small": "pirate-s", "large": "pirate-l"}, complexity=1)
    decision = decide(both, TIER, two_pools(small=load(adapters=("pirate-s",))))
    assert (decision.pool, decision.adapter, decision.reason) == ("small", "pirate-s", "unavailable")


def test_an_adapter_that_nobody_holds_has_no_replica_and_its_private_name_stays_private() -> None:
    nowhere = route("pirate", variants={"small": "tenant-7-secret", "large": "tenant-7-other"})
    with pytest.raises(NoReplica) as refused:
        decide(nowhere, TIER, two_pools(small=load(adapters=("pirate",))))
    assert "'pirate'" in str(refused.value)
    assert "tenant-7" not in str(refused.value)


def test_a_server_that_reports_nothing_is_trusted_to_hold_the_adapter() -> None:
    foreign = Member(worker_id="vllm", url="http://vllm", engine="openai", model_name="m")
    decision = decide(route("pirate", variants={"small": "pirate-s"}), TIER, fleet(pool("small", foreign)))
    assert [each.worker_id for each in decision.members] == ["vllm"]


def test_a_prompt_goes_where_it_fits() -> None:
    picture = fleet(pool("small", member("s"), window=100), pool("large", member("l"), window=1000))
    assert outcome(route(prompt_tokens=90, max_tokens=11), TIER, picture) == ("large", "complex")
    assert outcome(route(prompt_tokens=90, max_tokens=10), TIER, picture) == ("small", "simple")
    with pytest.raises(DoesNotFit, match="100 tokens"):
        decide(route("small", prompt_tokens=101), TIER, picture)
    with pytest.raises(DoesNotFit, match="1000 tokens"):
        decide(route(prompt_tokens=1001), TIER, picture)


def test_unknown_models_and_empty_fleets_are_told_apart() -> None:
    with pytest.raises(UnknownModel, match="nothing-like-it"):
        decide(route("nothing-like-it"), TIER, two_pools())
    with pytest.raises(UnknownModel):
        decide(route(), TIER, fleet())
    with pytest.raises(NoReplica):
        decide(route(), TIER, fleet(pool("small"), pool("large")))


def test_a_pool_of_another_name_has_no_stand_in() -> None:
    picture = fleet(pool("small", member("s")), pool("legal", member("x", BUSY)))
    assert outcome(route("legal"), TIER, picture) == ("legal", "requested")


counts = st.integers(0, 20) | st.sampled_from([-1, -(2**60), 2**60, 0])
odd = st.floats(allow_nan=True, allow_infinity=True)
reports = st.builds(
    load,
    waiting=counts,
    running=counts,
    free_blocks=counts,
    max_num_seqs=counts,
    is_draining=st.booleans(),
    adapters=st.sampled_from([(), ("p",), ("q",), ("p", "p")]),
    resident=st.none() | st.sampled_from([(), ("p",), ("x",)]),
)
members = st.lists(
    st.builds(
        member,
        st.text("ab\ud800", min_size=1, max_size=4),
        st.none() | reports,
        is_healthy=st.booleans(),
        is_on_trial=st.booleans(),
        age_s=odd,
        weight=odd,
        recent_ttft_ms=st.none() | odd,
        own_unanswered=counts,
        own_streaming=counts,
    ),
    max_size=12,
)
fleets = st.builds(lambda s, m: fleet(pool("small", *s), pool("large", *m, window=8192)), members, members)
tiers = st.builds(
    TierPolicy,
    name=st.just("t"),
    complexity_threshold=st.floats(0, 1),
    allowed_pools=st.none() | st.frozensets(st.sampled_from(["small", "large"])),
    on_saturation=st.sampled_from(["fallback", "queue", "reject"]),
    best_effort=st.booleans(),
    uncertain_threshold=st.none() | odd,
)
requests = st.builds(
    route,
    st.sampled_from(["auto", "small", "demo-large", "pirate"]),
    complexity=st.floats(0, 1) | odd,
    prompt_tokens=st.integers(0, 9000),
    is_uncertain=st.booleans(),
    needs_large=st.booleans(),
    affinity=st.none() | st.builds(Affinity, st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1)),
).flatmap(lambda request: st.sampled_from([request, _as_adapter(request)]))


def _as_adapter(request: RouteRequest) -> RouteRequest:
    return route("pirate", variants={"large": "p"}, complexity=request.complexity, prompt_tokens=request.prompt_tokens)


@given(requests, tiers, fleets)
def test_whatever_is_decided_is_allowed_fits_and_is_up(request: RouteRequest, tier: TierPolicy, picture: Fleet) -> None:
    try:
        decision = decide(request, tier, picture)
    except RouteError:
        return
    chosen = picture.pools[decision.pool]
    assert tier.allowed_pools is None or decision.pool in tier.allowed_pools
    assert request.prompt_tokens + request.max_tokens <= chosen.context_window
    assert decision.members and all(map(_is_usable, decision.members))
    assert chosen in possible_pools(request, tier, picture)
    assert all(_holds(each, decision.adapter) for each in decision.members)
    if request.variants is not None:
        assert decision.adapter == request.variants[decision.pool]
    assert tier.best_effort <= (not is_pool_full(chosen))
    named = picture.pool_serving(request.model) if request.variants is None else None
    assert named is None or chosen is named or is_no_dearer(chosen, named)


@given(requests, tiers, fleets)
def test_the_same_picture_gives_the_same_decision(request: RouteRequest, tier: TierPolicy, picture: Fleet) -> None:
    assert _outcome_of(request, tier, picture) == _outcome_of(request, tier, picture)


def _outcome_of(request: RouteRequest, tier: TierPolicy, picture: Fleet) -> Decision | type[RouteError]:
    try:
        return decide(request, tier, picture)
    except RouteError as error:
        return type(error)


def _is_usable(member: Member) -> bool:
    return member.is_healthy and not (member.load is not None and member.load.is_draining)


def _holds(member: Member, adapter: str | None) -> bool:
    return adapter is None or member.load is None or adapter in member.load.adapters
