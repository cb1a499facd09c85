"""The virtual token counter of one class."""

from tests.worker.engine.test_scheduler import make_sequence
from worker.engine.fairness import FairQueue


def names(queue: FairQueue, count: int, *, cost: float = 1.0) -> str:
    """Serve `count` sequences, charging each its tenant's cost."""
    served = ""
    for _ in range(count):
        tenant = queue.pop().request.tenant
        queue.charge(tenant, cost)
        served += tenant
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


def test_a_tenant_served_much_stays_behind_those_that_wait() -> None:
    queue = FairQueue()
    push(queue, "abbb")
    queue.charge("a", 100.0)
    assert names(queue, 4) == "bbba"


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
    assert len(queue._served) < 3000
