"""Amounts: whole nano-dollars (1e-9 dollars), never floats. The one place that rounds."""

WHOLE = 10_000
"""100 % in basis points; 1,900 are 19 %."""
_NANOS = 10**9


def share_of(amount_nanousd: int, *, basis_points: int) -> int:
    """A discount's or a tax's share of an amount, rounded to the nearest nano-dollar, halves away from zero.

    Rounding is the same on both sides of zero, so that the share of a refund is exactly the share that was charged.
    """
    share = (abs(amount_nanousd) * basis_points + WHOLE // 2) // WHOLE
    return -share if amount_nanousd < 0 else share


def dollars(amount_nanousd: int) -> str:
    """The exact amount, with two decimals or as many as it needs: `-1,234.50`, `0.000000123`."""
    whole, rest = divmod(abs(amount_nanousd), _NANOS)
    decimals = f"{rest:09}".rstrip("0").ljust(2, "0")
    return f"{'-' if amount_nanousd < 0 else ''}{whole:,}.{decimals}"
