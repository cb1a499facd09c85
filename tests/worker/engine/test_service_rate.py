"""When to come back, from how fast requests were served."""

from worker.engine.service_rate import ServiceRate


def test_without_experience_one_second() -> None:
    assert ServiceRate().retry_after_s(1000, now=5.0) == 1.0


def test_about_when_half_of_the_waiting_are_served_between_1_and_60_s() -> None:
    rate = ServiceRate()
    for i in range(100):
        rate.record(i * 0.5)
    assert 9 < rate.retry_after_s(40, now=49.5) < 11
    assert rate.retry_after_s(1, now=49.5) == 1.0
    assert rate.retry_after_s(10_000, now=49.5) == 60.0
