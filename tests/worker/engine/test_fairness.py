"""Turns between tenants, between a tenant's adapters, and short prompts first."""

from hypothesis import given
from hypothesis import strategies as st

from tests.support.simulation import make_sequence
from worker.engine.fairness import FairQueue


def names(queue: FairQueue, count: int, *, cost: float = 1.0) -> str:
    """Serve `count` sequences, charging each its tenant's cost."""
    served = ""
    for _ in range(count):
        request = queue.pop().request
        queue.charge(request, cost)
        served += request.tenant
    return served


def push(queue: FairQueue, tenants: str) -> None:
    for i, tenant in enumerate(tenants):
        queue.push(make_sequence(f"{tenant}{i}", tenant=tenant))


def test_tenants_take_turns_however_many_requests_one_has() -> None:
    queue = FairQueue()
    push(queue, "aaaaaaaabb")
    assert names(queue, 4) in ("abab", "abba")


def test_a_tenant_that_returns_is_lifted_to_those_that_waited() -> None:
    queue = FairQueue()
    push(queue, "aaaaaaaaaaaaaa")
    names(queue, 10)
    push(queue, "bbbb")
    assert names(queue, 4).count("b") == 2


def test_a_tenant_that_comes_anew_is_before_its_equal_once() -> None:
    queue = FairQueue()
    push(queue, "aaaa")
    served = queue.pop()
    queue.charge(served.request, 10)
    push(queue, "b")
    assert names(queue, 1) == "b"
    push(queue, "c")
    assert names(queue, 2) == "ac"


def test_a_tenant_served_much_stays_behind_those_that_wait() -> None:
    queue = FairQueue()
    push(queue, "abbb")
    queue.charge(make_sequence("x", tenant="a").request, 100.0)
    assert names(queue, 4) == "bbba"


def test_a_tenants_adapters_take_turns_in_its_share() -> None:
    queue = FairQueue()
    for i in range(8):
        queue.push(make_sequence(f"flood {i}", tenant="a", adapter="one"))
    for i in range(2):
        queue.push(make_sequence(f"other {i}", tenant="a", adapter="two"))
        queue.push(make_sequence(f"b {i}", tenant="b"))
    served = []
    for _ in range(6):
        request = queue.pop().request
        queue.charge(request, 1.0)
        served.append((request.tenant, request.adapter))
    assert served.count(("b", None)) == 2
    assert served.count(("a", "two")) == 2


def test_short_prompts_of_one_tenant_go_first() -> None:
    queue = FairQueue()
    for name, prompt_len in (("long", 1000), ("short", 10), ("shorter", 5)):
        queue.push(make_sequence(name, prompt_len=prompt_len))
    assert [queue.pop().request.request_id for _ in range(3)] == ["shorter", "short", "long"]


@given(st.integers(1, 500), st.lists(st.integers(1, 500), max_size=60), st.lists(st.integers(1, 500), max_size=10))
def test_a_prompt_is_passed_by_fewer_than_3_times_its_tokens(length: int, later: list[int], earlier: list[int]) -> None:
    queue = FairQueue()
    for i, prompt_len in enumerate(earlier):
        queue.push(make_sequence(f"earlier {i}", prompt_len=prompt_len))
    queue.push(make_sequence("long", prompt_len=length))
    for i, prompt_len in enumerate(later):
        queue.push(make_sequence(f"later {i}", prompt_len=prompt_len))
    num_passed = 0
    while (sequence := queue.pop()).request.request_id != "long":
        num_passed += sequence.num_prompt if sequence.request.request_id.startswith("later") else 0
    assert num_passed < 3 * length


def test_what_is_put_back_goes_first_and_what_is_removed_never() -> None:
    queue = FairQueue()
    first, second, third = (make_sequence(name, tenant="a") for name in "123")
    for sequence in (first, second, third):
        queue.push(sequence)
    assert queue.pop() is first
    queue.push_front(first)
    queue.remove(second)
    assert (queue.pop(), queue.pop(), len(queue)) == (first, third, 0)


def test_tenants_long_gone_are_forgotten() -> None:
    queue = FairQueue()
    for i in range(5000):
        queue.push(make_sequence(str(i), tenant=str(i)))
        names(queue, 1)
    assert len(queue._tenants._served) < 3000
