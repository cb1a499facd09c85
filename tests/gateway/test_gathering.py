from gateway.gathering import ENOUGH, MAX_S, Gathering


def test_a_batch_waits_while_it_grows() -> None:
    gathering = Gathering()
    assert [gathering.waits(num, 0.0) for num in (1, 3, 3)] == [True, True, False]


def test_a_batch_that_keeps_growing_leaves_in_time() -> None:
    gathering = Gathering()
    assert [gathering.waits(num, 100 + 0.4 * num * MAX_S) for num in (1, 2, 3, 4)] == [True, True, True, False]


def test_a_large_batch_leaves_at_once() -> None:
    gathering = Gathering()
    assert gathering.waits(ENOUGH - 1, 0.0)
    assert not gathering.waits(ENOUGH, 0.0)
    assert not gathering.waits(ENOUGH, 0.0)


def test_the_next_batch_begins_anew() -> None:
    gathering = Gathering()
    waited = [gathering.waits(num, now) for num, now in [(5, 0.0), (5, 0.0), (1, 5.0), (2, 5.0), (2, 5.0)]]
    assert waited == [True, False, True, True, False]


def test_a_batch_that_cannot_grow_leaves_at_once() -> None:
    gathering = Gathering()
    assert gathering.waits(1, 0.0, num_expected=3)
    assert not gathering.waits(3, 0.0, num_expected=3)


def test_nothing_gathered_waits_for_nothing() -> None:
    assert not Gathering().waits(0, 0.0)
