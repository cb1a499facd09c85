"""The GPU's benchmark runs on the stand-in, so that it works the first time that it meets a GPU."""

import json
from pathlib import Path

import pytest

from benchmarks.gpu.__main__ import main


def test_the_benchmark_runs_without_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["benchmarks.gpu", "--stand-in", "--out", str(tmp_path)])
    main()
    report = json.loads((tmp_path / "report.json").read_text())
    assert [row["verdict"] for row in report["rows"]] == ["right"] * 5
    assert report["versions"]["ptxas"] and not report["limits"]
    assert len((tmp_path / "report.md").read_text().splitlines()) == 4 + 5
