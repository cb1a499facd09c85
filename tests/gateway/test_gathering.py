from gateway.gathering import ENOUGH, MAX_S, NUM_SKIPPED, Gathering


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


def test_a_batch_that_cannot_grow_leaves_at_once() -> None:
    gathering = Gathering()
    assert gathering.waits(1, 0.0, num_expected=3)
    assert not gathering.waits(3, 0.0, num_expected=3)


def test_the_next_batch_begins_anew() -> None:
    gathering = Gathering()
    assert [gathering.waits(num, 0.0) for num in (5, 5)] == [True, False]
    gathering.leave()
    assert [gathering.waits(num, 5.0) for num in (1, 2, 2)] == [True, True, False]


def test_nothing_gathered_waits_for_nothing() -> None:
    assert not Gathering().waits(0, 0.0)


def test_after_a_long_iteration_the_next_batches_leave_at_once() -> None:
    gathering = Gathering()
    assert gathering.waits(1, 0.0)
    assert not gathering.waits(2, 20 * MAX_S)
    gathering.leave()
    for turn in range(1, NUM_SKIPPED):
        assert not gathering.waits(1, 20 * turn * MAX_S)
        gathering.leave()
    assert gathering.waits(1, 1000.0)
