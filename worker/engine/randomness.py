"""Random numbers that depend on a seed and a position only, never on the batch or on preemptions."""

_MASK = 2**64 - 1
_OTHER_CHOICES = 0x5851F42D4C957F2D
"""Keeps the seeds of further answers away from the numbers drawn with the request's own."""


def uniform(seed: int, position: int) -> float:
    """In [0, 1), 53 bits. Two rounds of splitmix64's finaliser over seed and position (Steele et al., 2014)."""
    return (_mix(_mix(seed & _MASK) + position) >> 11) / 2**53


def choice_seed(seed: int, index: int) -> int:
    """The seed of one of several answers to a prompt; that of the first is the request's own."""
    return seed if index == 0 else _mix(_mix(seed & _MASK ^ _OTHER_CHOICES) + index)


def _mix(x: int) -> int:
    x = (x + 0x9E3779B97F4A7C15) & _MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)
