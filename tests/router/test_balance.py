from collections import Counter

from router.balance import order
from tests.support.fleets import load, member


def first(*members: object, request_id: str = "r") -> str:
    return order(members, request_id=request_id)[0].worker_id  # type: ignore[arg-type]


def test_fewest_waiting_comes_first() -> None:
    assert first(member("a", load(waiting=2)), member("b", load(waiting=1, running=60))) == "b"


def test_then_the_smaller_share_of_running() -> None:
    assert first(member("a", load(running=10, max_num_seqs=16)), member("b", load(running=20, max_num_seqs=64))) == "b"


def test_then_the_most_free_blocks() -> None:
    assert first(member("a", load(free_blocks=10)), member("b", load(free_blocks=90))) == "b"


def test_equals_are_spread_by_request_and_stable_for_one() -> None:
    equals = [member(f"w{i}") for i in range(4)]
    picks = Counter(first(*equals, request_id=str(i)) for i in range(400))
    assert len(picks) == 4 and min(picks.values()) > 50
    assert first(*equals, request_id="7") == first(*reversed(equals), request_id="7")
