from collections import Counter

import msgspec
import pytest

from protocol.artifacts import artifact_name
from router.balance import FEW, GROUP, Affinity, order
from router.fleet import Member, usable_members
from router.replicas import Replicas
from router.ring import hash_key
from tests.support.fleets import load, member, pool


def first(*members: Member, request_id: str = "r", **asked: object) -> str:
    return order(pool("p", *members), request_id=request_id, **asked)[0].member.worker_id  # type: ignore[arg-type]


def test_fewest_waiting_comes_first() -> None:
    assert first(member("a", load(waiting=2)), member("b", load(waiting=1, running=60))) == "b"


def test_then_the_smaller_share_of_running() -> None:
    assert first(member("a", load(running=10, max_num_seqs=16)), member("b", load(running=20, max_num_seqs=64))) == "b"


def test_a_replica_whose_slots_or_blocks_are_gone_comes_after_one_with_a_short_queue() -> None:
    assert first(member("a", load(running=64)), member("b", load(waiting=5))) == "b"
    assert first(member("a", load(free_blocks=4)), member("b", load(waiting=5))) == "b"
    assert first(member("a", load(free_blocks=5)), member("b", load(waiting=5))) == "a"


def test_equals_are_spread_by_request_and_stable_for_one() -> None:
    equals = [member(f"w{i}") for i in range(4)]
    picks = Counter(first(*equals, request_id=str(i)) for i in range(400))
    assert len(picks) == 4 and min(picks.values()) > 50
    assert first(*equals, request_id="7") == first(*reversed(equals), request_id="7")


def test_what_was_sent_since_the_report_counts_and_what_the_report_counted_does_not_count_twice() -> None:
    busy, idle = member("a", load(waiting=3, running=1), own_unanswered=4), member("b", load(waiting=1))
    for _ in range(4):
        busy.in_flight.send(0.0)
    [looked] = order(pool("p", busy), request_id="r")
    assert (looked.num_waiting, looked.num_running) == (4, 0)
    for _ in range(4):
        idle.in_flight.send(0.0)
    assert first(busy, idle) == "a"


def test_a_slow_replica_counts_as_busier_and_a_new_one_gets_less() -> None:
    quick = [member(f"q{i}", load(waiting=1), recent_ttft_ms=50.0) for i in range(3)]
    assert first(*quick, member("slow", recent_ttft_ms=900.0)).startswith("q")
    assert first(*quick, member("new", weight=0.1)).startswith("q")
    assert first(*quick, member("idle", recent_ttft_ms=60.0)) == "idle"


def test_a_replica_on_trial_gets_one_request_at_a_time() -> None:
    tried, other = member("tried", is_on_trial=True), member("other", load(waiting=9))
    assert first(tried, other) == "tried"
    trip = tried.in_flight.send(0.0)
    assert [each.member.worker_id for each in order(pool("p", tried, other), request_id="r")] == ["other"]
    trip.note_first_token(0.1)
    assert first(tried, other) == "tried"


def test_a_conversation_returns_to_its_replica_and_its_beginning_to_a_few() -> None:
    members = [member(f"w{i}") for i in range(50)]
    group = hash_key("tenant", "system prompt")
    one = {first(*members, request_id=str(i), affinity=Affinity(group, 5)) for i in range(50)}
    all_of_group = {first(*members, request_id=str(i), affinity=Affinity(group, i)) for i in range(50)}
    others = {first(*members, request_id=str(i), affinity=Affinity(hash_key(str(i)), 5)) for i in range(50)}
    assert (len(one), len(all_of_group)) == (1, GROUP)
    assert len(others) > 20


def test_a_home_that_is_busy_is_left() -> None:
    members = [member(f"w{i}") for i in range(50)]
    affinity = Affinity(hash_key("x"), 1)
    home = first(*members, affinity=affinity)
    busy = [msgspec.structs.replace(each, load=load(waiting=3)) if each.worker_id == home else each for each in members]
    assert first(*busy, affinity=affinity) != home


def test_homes_stay_when_another_replica_goes() -> None:
    members = [member(f"w{i}") for i in range(20)]
    keys = [hash_key(str(i)) for i in range(300)]
    before = [[each.member.worker_id for each in Replicas(members).homes(key, 1)] for key in keys]
    after = [[each.member.worker_id for each in Replicas(members[1:]).homes(key, 1)] for key in keys]
    moved = [(old, new) for old, new in zip(before, after, strict=True) if old != new]
    assert moved and all(old == ["w0"] for old, _ in moved)


def test_a_resident_adapter_is_worth_a_queue_but_not_any_queue() -> None:
    cold = member("cold", load(adapters=("x",), resident=()))
    assert first(cold, member("warm", load(waiting=4, adapters=("x",), resident=("x",))), adapter="x") == "warm"
    assert first(cold, member("warm", load(waiting=9, adapters=("x",), resident=("x",))), adapter="x") == "cold"
    assert first(cold, member("all", load(waiting=4, adapters=("x",))), adapter="x") == "all"


def test_an_adapter_of_the_store_is_served_wherever_it_can_be_fetched_and_best_where_it_is_loaded() -> None:
    name = artifact_name("0" * 64)
    without, fetching = member("without"), member("fetching", load(fetches=True))
    assert usable_members(pool("p", without, fetching), adapter=name) == (fetching,)
    assert not usable_members(pool("p", without, fetching), adapter="pirate")
    looked_at = order(pool("p", without, fetching), request_id="r", adapter=name)
    assert [(each.member, each.is_resident) for each in looked_at] == [(fetching, False)]
    warm = member("warm", load(waiting=4, adapters=(name,), fetches=True))
    assert first(fetching, warm, adapter=name) == "warm"


def test_a_few_of_many_replicas_are_looked_at_and_the_resident_ones_are_among_them() -> None:
    members = [member(f"w{i}", load(adapters=("x",), resident=("x",) if i == 77 else ())) for i in range(200)]
    looked_at = order(pool("p", *members), request_id="r", adapter="x")
    assert looked_at[0].member.worker_id == "w77" and looked_at[0].is_resident
    assert len(looked_at) <= 2 * FEW


@pytest.mark.parametrize("age_s", [0.2, 60.0, float("nan"), -3600.0])
def test_many_gateways_with_one_picture_do_not_all_take_the_same_replica(age_s: float) -> None:
    members = [member(f"w{i}", load(waiting=0 if i < 10 else 5), age_s=age_s) for i in range(50)]
    picks = Counter(first(*members, request_id=f"request-{i}") for i in range(1000))
    assert max(picks.values()) < 250
    if age_s == 0.2:
        assert all(int(name[1:]) < 10 for name, times in picks.items() if times > 5)


def test_one_server_that_registered_twice_is_one_candidate() -> None:
    twice = [member("w", age_s=9.0), member("w", is_healthy=False), member("w", age_s=0.1)]
    again = msgspec.structs.replace(member("other-name", age_s=1.0), url="http://w")
    [only] = order(pool("p", *twice, again), request_id="r")
    assert only.member is twice[2]


def test_reports_that_cannot_be_true_are_not_used() -> None:
    liar, honest = member("liar", load(waiting=-5, running=-1)), member("honest", load(waiting=0))
    picks = Counter(first(liar, honest, request_id=str(i)) for i in range(100))
    assert len(picks) == 2
    assert order(pool("p", liar), request_id="r")[0].num_waiting == 0
