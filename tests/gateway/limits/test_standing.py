import pytest

from gateway.limits.standing import Standing, format_reset
from tests.support.tiers import make_tier


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0ms"), (0.012, "12ms"), (1, "1s"), (1.5, "1.5s"), (60, "1m0s"), (360, "6m0s"), (3600, "1h0m0s")],
)
def test_durations_look_like_openais(seconds: float, text: str) -> None:
    assert format_reset(seconds) == text


def test_a_limit_that_is_not_set_has_no_headers() -> None:
    headers = Standing(3, 7, 60, is_local=False).headers(make_tier(requests_per_minute=10))
    assert headers == {
        "x-ratelimit-limit-requests": "10",
        "x-ratelimit-remaining-requests": "7",
        "x-ratelimit-reset-requests": "1m0s",
    }
