from worker.server.waiting import QueuePositions


def test_a_place_counts_classes_then_arrivals() -> None:
    line = QueuePositions()
    for request_id, priority in (("a", 2), ("b", 2), ("c", 0), ("d", 3)):
        line.enter(request_id, priority)
    assert [line.position(each, num_waiting=4) for each in "cabd"] == [1, 2, 3, 4]
    line.leave("c")
    assert [line.position(each, num_waiting=3) for each in "abd"] == [1, 2, 3]


def test_those_being_computed_are_at_place_0() -> None:
    line = QueuePositions()
    for request_id in "abc":
        line.enter(request_id, 2)
    assert [line.position(each, num_waiting=1) for each in "abc"] == [0, 0, 1]
