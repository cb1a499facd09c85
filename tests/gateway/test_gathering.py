from gateway.gathering import MAX_TURNS, Gathering


def test_a_batch_waits_while_it_grows() -> None:
    gathering = Gathering()
    assert [gathering.waits(num) for num in (1, 3, 3)] == [True, True, False]


def test_a_batch_that_keeps_growing_leaves_in_the_end() -> None:
    gathering = Gathering()
    assert [gathering.waits(num) for num in range(1, MAX_TURNS + 2)] == MAX_TURNS * [True] + [False]


def test_the_next_batch_begins_anew() -> None:
    gathering = Gathering()
    waited = [gathering.waits(num) for num in (5, 5, 1, 2, 2)]
    assert waited == [True, False, True, True, False]


def test_nothing_gathered_waits_for_nothing() -> None:
    assert not Gathering().waits(0)
