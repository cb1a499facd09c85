"""Rows for people (a table) or for scripts (JSON)."""

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from shutil import get_terminal_size
from typing import Any

Row = Mapping[str, Any]
_MONEY = "_nanousd"
"""The suffix of amounts in 1e-9 dollars. Tables show them in dollars, JSON unchanged."""


def show_rows(rows: Iterable[Row], columns: Sequence[str] | None = None, *, as_json: bool) -> None:
    """A table of `columns` (default: the first row's fields), or all fields as one JSON array."""
    found = list(rows)
    if as_json:
        _write(json.dumps(found, indent=2, ensure_ascii=False))
    elif not found:
        _write("none")
    else:
        names = list(columns or found[0])
        heads = [name.removesuffix(_MONEY) for name in names]
        cells = [heads, *([_cell(row.get(name), is_money=name.endswith(_MONEY)) for name in names] for row in found)]
        _write(fitted(cells, width=get_terminal_size().columns) if sys.stdout.isatty() else _table(cells))


def show_row(row: Row, *, as_json: bool) -> None:
    if as_json:
        _write(json.dumps(row, indent=2, ensure_ascii=False))
    else:
        cells = [_cell(value, is_money=name.endswith(_MONEY)) for name, value in row.items()]
        _write(_record([name.removesuffix(_MONEY) for name in row], cells))


def fitted(cells: Sequence[Sequence[str]], *, width: int) -> str:
    """A table for a terminal of `width` columns. cells: the heads first, then the rows.

    If the terminal is too narrow for a table, each row is printed with one field per line.
    """
    heads, *rows = cells
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    if sum(widths) + 3 * len(widths) + 1 > width:
        return "\n\n".join(_record(heads, row) for row in rows)
    return _pretty(cells, width=width)


def _cell(value: Any, *, is_money: bool = False) -> str:
    if value is None:
        return "-"
    if is_money and isinstance(value, int):
        return _dollars(value)
    if isinstance(value, float):
        return f"{value:.6g}"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _dollars(nanousd: int) -> str:
    """Every significant digit, but at least two decimals."""
    whole, rest = divmod(abs(nanousd), 1_000_000_000)
    digits = f"{rest:09}".rstrip("0").ljust(2, "0")
    return f"{'-' if nanousd < 0 else ''}${whole:,}.{digits}"


def _record(heads: Sequence[str], cells: Sequence[str]) -> str:
    width = max(map(len, heads), default=0)
    return "\n".join(f"{head:<{width}}  {cell}" for head, cell in zip(heads, cells, strict=True))


def _table(cells: Sequence[Sequence[str]]) -> str:
    """Without colours or lines, so that cut and awk can read it; no column is shortened."""
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return "\n".join("  ".join(f"{cell:<{w}}" for cell, w in zip(row, widths, strict=True)).rstrip() for row in cells)


def _pretty(cells: Sequence[Sequence[str]], *, width: int) -> str:
    from rich.box import SIMPLE
    from rich.console import Console
    from rich.table import Table

    table = Table(*cells[0], box=SIMPLE)
    for row in cells[1:]:
        table.add_row(*row)
    console = Console(width=width)
    with console.capture() as captured:
        console.print(table, markup=False)
    return captured.get().rstrip()


def _write(text: str) -> None:
    sys.stdout.write(text + "\n")
