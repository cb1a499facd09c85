"""Cells of CSV files that spreadsheets open."""

from typing import Any

_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def cell(value: Any) -> Any:
    """Mark as text what a spreadsheet would take for a formula."""
    if isinstance(value, str) and value.startswith(_FORMULA):
        return f"'{value}"
    return "" if value is None else value
