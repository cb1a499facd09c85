"""The table, rewritten after each row, so that an interrupted run leaves its results."""

import json
from pathlib import Path
from typing import Any

Row = dict[str, Any]

_COLUMNS = (
    ("error", "error", 1),
    ("seconds", "microseconds", 1e6),
    ("of_copy", "of copy", 1),
    ("of_products", "of products", 1),
    ("of_peer", "of fa3", 1),
    ("of_roofline", "of the roofline", 1),
    ("over_base", "over base", 1),
    ("of_lora_floor", "of LoRA's floor", 1),
    ("tokens_per_s", "tokens/s", 1),
)


_TIMES = frozenset(name for name, _, _ in _COLUMNS) - {"error"}


class Report:
    """has_times: if false, figures that depend on time are computed, to check that they can be, but not written."""

    def __init__(self, out: Path, versions: dict[str, str], *, has_times: bool) -> None:
        out.mkdir(parents=True, exist_ok=True)
        self._out = out
        self.versions = versions
        self._has_times = has_times
        self.limits = {"copy_bytes_per_s": 1.0, "products_per_s": 1.0}
        self.rows: list[Row] = []
        self.write()

    def put(self, row: Row) -> None:
        """Add a row, or add fields to the row of the same name."""
        if not self._has_times:
            row = {name: value for name, value in row.items() if name not in _TIMES}
        known = next((each for each in self.rows if each["name"] == row["name"]), None)
        if known is None:
            self.rows.append(row)
        else:
            known.update(row)
        print(row, flush=True)
        self.write()

    def is_right(self, name: str) -> bool:
        return any(row["name"] == name and row["verdict"] == "right" for row in self.rows)

    def write(self) -> None:
        shown = self.limits if self._has_times else {}
        content = {"versions": self.versions, "limits": shown, "rows": self.rows}
        (self._out / "report.json").write_text(json.dumps(content, indent=1))
        lines = [
            f"| case | verdict | {' | '.join(title for _, title, _ in _COLUMNS)} |",
            "|---" * (2 + len(_COLUMNS)) + "|",
        ]
        for row in self.rows:
            figures = (f"{row[name] * scale:.3g}" if name in row else "" for name, _, scale in _COLUMNS)
            lines.append(f"| {row['name']} | {row['verdict']} | {' | '.join(figures)} |")
        said = ", ".join(f"{name} {value}" for name, value in self.versions.items())
        limits = ", ".join(f"{name} {value:.3g}" for name, value in shown.items())
        (self._out / "report.md").write_text(f"{said}\n{limits}\n\n" + "\n".join(lines) + "\n")


def failure(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
