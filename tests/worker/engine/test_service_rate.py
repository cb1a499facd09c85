"""When to come back, from how fast requests were served."""

from worker.engine.service_rate import ServiceRate


def test_without_experience_one_second() -> None:
    assert ServiceRate().retry_after_s(1000) == 1.0


def test_about_when_half_of_the_waiting_are_served_between_1_and_60_s() -> None:
    rate = ServiceRate()
    for step in range(500):
        rate.record_step(0.1)
        if step % 5 == 0:
            rate.record_end()
    assert 9 < rate.retry_after_s(40) < 11
    assert rate.retry_after_s(1) == 1.0
    assert rate.retry_after_s(10_000) == 60.0
