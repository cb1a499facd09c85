"""Amounts: whole nano-dollars (1e-9 dollars), never floats. The one place that rounds."""

WHOLE = 10_000
"""Basis points of the whole: 1,900 are 19 %."""
_NANOS = 10**9


def share_of(amount_nanousd: int, *, basis_points: int) -> int:
    """A discount's or a tax's share, to the nearest nano-dollar, halves away from zero: so that the share of what is
    given back is exactly what was taken."""
    share = (abs(amount_nanousd) * basis_points + WHOLE // 2) // WHOLE
    return -share if amount_nanousd < 0 else share


def dollars(amount_nanousd: int) -> str:
    """The exact amount, with two decimals or as many as it takes: `-1,234.50`, `0.000000123`."""
    whole, rest = divmod(abs(amount_nanousd), _NANOS)
    decimals = f"{rest:09}".rstrip("0").ljust(2, "0")
    return f"{'-' if amount_nanousd < 0 else ''}{whole:,}.{decimals}"
