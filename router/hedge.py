"""When a first token is late, and which replica is asked for it then, too."""

from collections.abc import Iterable, Sequence

from router.balance import Candidate
from router.fleet import Member
from router.saturation import Thresholds, is_full

LATE_SHARE = 0.95
"""A first token is late when it takes longer than this share of the last minute's."""
ENOUGH = 20
"""Fewer times tell no such share."""


def late_after_ms(first: Member, candidates: Iterable[Member], now_s: float) -> float | None:
    """From sending to `first`: by its own times or, where these are too few, by those of all candidates.

    None where these are too few as well.
    """
    times_ms = first.in_flight.measured_ms(now_s)
    if len(times_ms) < ENOUGH:
        times_ms = [each for member in candidates for each in member.in_flight.measured_ms(now_s)]
    if len(times_ms) < ENOUGH:
        return None
    return sorted(times_ms)[int(LATE_SHARE * len(times_ms))]


def spare(candidates: Sequence[Candidate], first: Member, thresholds: Thresholds) -> Member | None:
    """The best other replica that has room; None where asking one would only lengthen a queue."""
    for candidate in candidates:
        member = candidate.member
        if member.url != first.url and not member.is_on_trial and not is_full(candidate.replica, thresholds):
            return member
    return None
