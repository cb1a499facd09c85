"""Hedging: when a first token is late, and which second replica to ask for it then."""

from collections.abc import Iterable, Sequence

from router.balance import Candidate
from router.fleet import Member
from router.saturation import Thresholds, is_full

LATE_SHARE = 0.95
"""A first token is late if it takes longer than this share of the first tokens of the last minute."""
ENOUGH = 20
"""Minimum number of measured times for that."""


def late_after_ms(first: Member, candidates: Iterable[Member], now_s: float) -> float | None:
    """How long after sending to `first` its first token is late: by its own times or, if too few, by all candidates'.

    None if these are too few as well.
    """
    times_ms = first.in_flight.measured_ms(now_s)
    if len(times_ms) < ENOUGH:
        times_ms = [each for member in candidates for each in member.in_flight.measured_ms(now_s)]
    if len(times_ms) < ENOUGH:
        return None
    return sorted(times_ms)[int(LATE_SHARE * len(times_ms))]


def spare(candidates: Sequence[Candidate], first: Member, thresholds: Thresholds) -> Member | None:
    """The best other replica with room; None if asking another one would only lengthen a queue."""
    for candidate in candidates:
        member = candidate.member
        if member.url != first.url and not member.is_on_trial and not is_full(candidate.replica, thresholds):
            return member
    return None
