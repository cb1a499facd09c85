"""Figures and their gates: one JSON line per figure on stdout, and a table of all figures at the end on stderr."""

import json
import sys
from dataclasses import dataclass, field
from typing import Literal

Of = Literal["value", "ratio"]


@dataclass(frozen=True)
class Gate:
    """A bound on the value, or on its ratio to the yardstick's value."""

    sign: Literal[">=", "<="]
    bound: float
    of: Of = "value"

    def passes(self, figure: float | None) -> bool:
        """A figure that could not be measured passes no gate."""
        if figure is None:
            return False
        return figure >= self.bound if self.sign == ">=" else figure <= self.bound

    def __str__(self) -> str:
        return f"{self.sign} {self.bound:g}{'x' if self.of == 'ratio' else ''}"


@dataclass(frozen=True, kw_only=True)
class Row:
    """One measured figure. details: further figures worth keeping, which no gate depends on."""

    benchmark: str
    unit: str
    value: float | None
    yardstick: float | None = None
    ratio: float | None = None
    gate: Gate | None = None
    aim: str | None = None
    details: dict[str, object] = field(default_factory=dict)

    @property
    def passed(self) -> bool | None:
        """None: reported only."""
        if self.gate is None:
            return None
        return self.gate.passes(self.ratio if self.gate.of == "ratio" else self.value)

    def as_json(self) -> str:
        fields: dict[str, object] = {
            "benchmark": self.benchmark,
            "value": _rounded(self.value),
            "unit": self.unit,
            "yardstick": _rounded(self.yardstick),
            "ratio": _rounded(self.ratio),
            "gate": None if self.gate is None else str(self.gate),
            "passed": self.passed,
        }
        if self.aim is not None:
            fields["aim"] = self.aim
        return json.dumps(fields | self.details)


class Report:
    def __init__(self) -> None:
        self.rows: list[Row] = []

    def add(self, row: Row) -> None:
        self.rows.append(row)
        print(row.as_json(), flush=True)

    @property
    def has_passed(self) -> bool:
        return all(row.passed is not False for row in self.rows)

    def print_table(self) -> None:
        lines = [("", "value", "yardstick", "ratio", "gate", "aim", "")]
        lines += [
            (
                row.benchmark,
                f"{_shown(row.value)} {row.unit}",
                _shown(row.yardstick),
                _shown(row.ratio),
                str(row.gate or ""),
                row.aim or "",
                {True: "passed", False: "MISSED", None: ""}[row.passed],
            )
            for row in self.rows
        ]
        widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
        for line in lines:
            cells = [
                cell.ljust(width) if i == 0 else cell.rjust(width)
                for i, (cell, width) in enumerate(zip(line, widths, strict=True))
            ]
            print("  ".join(cells).rstrip(), file=sys.stderr)


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.6g}")


def _shown(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
