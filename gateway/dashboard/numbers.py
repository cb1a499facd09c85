"""Numbers as people read them."""

from collections.abc import Callable
from decimal import Decimal

Format = Callable[[float], str]
_SUFFIXES = ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k"))
NANOUSD_PER_USD = 10**9


def short_count(value: float) -> str:
    """1234 -> 1.23k"""
    for size, suffix in _SUFFIXES:
        if abs(value) >= size:
            return f"{value / size:.3g}{suffix}" if abs(value) < 1000 * size else f"{value / size:,.0f}{suffix}"
    return f"{value:g}"


def full_count(value: float) -> str:
    return f"{value:,.0f}"


def money(nanousd: float) -> str:
    """Cents, and below a dollar as many places as it takes for two telling digits."""
    dollars = Decimal(int(nanousd)) / NANOUSD_PER_USD
    if dollars == 0:
        return "$0"
    if abs(dollars) >= 1:
        return f"${dollars:,.2f}"
    whole, _, cents = f"{dollars:.{min(9, 1 - dollars.adjusted())}f}".partition(".")
    return f"${whole}.{cents.rstrip('0'):0<2}"


def milliseconds(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:.0f} ms" if value < 1000 else f"{value / 1000:.2f} s"
