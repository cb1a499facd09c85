"""Numbers as people read them."""

from collections.abc import Callable, Iterable
from decimal import Decimal

Format = Callable[[float], str]
_SUFFIXES = ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k"))
NANOUSD_PER_USD = 10**9


def short_count(value: float) -> str:
    """1234 -> 1.23k"""
    for size, suffix in _SUFFIXES:
        if abs(value) >= size:
            return f"{value / size:.3g}{suffix}" if abs(value) < 1000 * size else f"{value / size:,.0f}{suffix}"
    return f"{value:.3g}"


def full_count(value: float) -> str:
    return f"{value:,.0f}"


def money(nanousd: float) -> str:
    """Dollars to the cent; below a dollar, with as many decimals as two significant digits take."""
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


def exact_money(nanousd: int) -> str:
    """Dollars to the nano-dollar, as billed."""
    return column_money(nanousd, places_of([nanousd]))


def places_of(amounts: Iterable[int]) -> int:
    """How many decimals show every amount of a table exactly: 2 to 9, the same for all amounts."""
    return max([2, *(len(f"{abs(amount) % NANOUSD_PER_USD:09}".rstrip("0")) for amount in amounts)])


def column_money(nanousd: int, places: int) -> str:
    """Dollars with `places` decimals, the same for all amounts of a table."""
    dollars = Decimal(abs(int(nanousd))) / NANOUSD_PER_USD
    return f"{'−' if nanousd < 0 else ''}${dollars:,.{places}f}"


def per_million(token_nanousd: int) -> str:
    """The price of a million tokens; a nano-dollar a token is the third decimal."""
    return column_money(token_nanousd * 10**6, 3)


def percent(basis_points: int) -> str:
    return f"{basis_points // 100}.{basis_points % 100:02} %"


def change(now: float | None, before: float | None) -> str:
    """The change against the period before; "" if there was nothing before."""
    if not before or now is None:
        return ""
    percent = 100 * (float(now) - float(before)) / float(before)
    if abs(percent) < 0.5:
        return "as before"
    return f"{'+' if percent > 0 else '−'}{abs(percent):,.0f} % to before"
