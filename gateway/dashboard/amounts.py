"""Amounts as people type them and as forms show them: dollars and percent."""

import re

from gateway.dashboard.numbers import NANOUSD_PER_USD
from gateway.http.errors import InvalidRequest

_NUMBER = re.compile(r"([-−]?)\$?([0-9]{1,12}(?:,[0-9]{3})*)(?:\.([0-9]*))?")


def typed_nanousd(text: str, *, param: str, per: int = 1) -> int:
    """Nano-dollars for dollars such as `0.25`, `$1,000` or `-3`. With `per`, `text` is the price of that many units,
    and the result that of one. Raises InvalidRequest."""
    scaled, rest = divmod(_scaled(text, param), per)
    if rest:
        raise InvalidRequest("that has too many decimals", param=param)
    return scaled


def typed_basis_points(text: str, *, param: str) -> int:
    """Basis points for a percentage such as `19` or `7.5`. Raises InvalidRequest."""
    scaled, rest = divmod(_scaled(text.rstrip(" %"), param), NANOUSD_PER_USD // 100)
    if rest:
        raise InvalidRequest("write percent with at most two decimals, such as 7.25", param=param)
    return scaled


def shown_amount(nanousd: int) -> str:
    """Dollars for an input field: exact, as short as possible, and without a currency sign."""
    whole, rest = divmod(abs(nanousd), NANOUSD_PER_USD)
    decimals = f"{rest:09}".rstrip("0")
    return f"{'-' if nanousd < 0 else ''}{whole}{f'.{decimals}' if decimals else ''}"


def _scaled(text: str, param: str) -> int:
    found = _NUMBER.fullmatch(text.strip())
    if found is None:
        raise InvalidRequest("write a number such as 0.25", param=param)
    sign, whole, decimals = found[1], found[2].replace(",", ""), (found[3] or "").rstrip("0")
    if len(decimals) > 9:
        raise InvalidRequest("that has too many decimals", param=param)
    scaled = int(whole) * NANOUSD_PER_USD + int(f"{decimals:0<9}")
    return -scaled if sign else scaled
