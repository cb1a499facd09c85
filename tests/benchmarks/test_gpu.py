"""The GPU's benchmark runs on the stand-in, so that it works the first time that it meets a GPU."""

import json
from pathlib import Path

import pytest
import torch

from benchmarks.gpu.__main__ import _check, main
from benchmarks.gpu.cases import Case


@pytest.mark.timeout(300)
def test_the_benchmark_runs_without_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["benchmarks.gpu", "--stand-in", "--out", str(tmp_path)])
    main()
    report = json.loads((tmp_path / "report.json").read_text())
    verdicts = {row["name"]: row["verdict"] for row in report["rows"]}
    assert set(verdicts.values()) == {"right"}, verdicts
    kinds = [name.split(",")[0] for name in verdicts]
    for kind in ("rms_norm", "silu_mul", "rope_and_store", "sampling", "paged_decode", "paged_prefill", "lora"):
        assert kind in kinds
    for kind in ("graph against eager", "the sanitizer's cases", "decode step", "LoRA", "server"):
        assert kind in kinds
    assert report["versions"]["ptxas"] and not report["limits"]
    assert {key for row in report["rows"] for key in row} == {"name", "verdict", "error"}
    assert len((tmp_path / "report.md").read_text().splitlines()) == 5 + len(verdicts)


def test_a_case_that_is_wrong_is_told_and_ends_nothing() -> None:
    def breaks() -> torch.Tensor:
        raise RuntimeError("an illegal\naddress")

    bits = iter(torch.tensor([[1.0], [1.001]]))
    ones = torch.ones(1)
    cases = {
        "right": Case("a", lambda: ones, lambda: ones, 0, 0),
        "wrong": Case("a", lambda: ones, lambda: 2 * ones, 0, 0),
        "its bits move: a race": Case("a", lambda: next(bits), lambda: ones, 0, 0),
        "RuntimeError: an illegal address": Case("a", breaks, lambda: ones, 0, 0),
    }
    assert [_check(case)["verdict"] for case in cases.values()] == list(cases)
