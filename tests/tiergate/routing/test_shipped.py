"""What the shipped weights are worth on the demo models, whose graded replies lie beside them."""

import json
from pathlib import Path

from router.complexity import shipped_weights
from tests.support.cli import tiergate
from tiergate.routing.evaluate import score_rows
from tiergate.routing.graded import read_graded

GRADED = Path("demo/graded")


def test_the_share_that_calibrate_sets_recovers_most_of_what_the_large_demo_model_is_worth() -> None:
    """The threshold comes from training items, and is judged on items that neither weights nor threshold saw."""
    told = tiergate("router", "calibrate", "--data", str(GRADED / "train.jsonl.gz"), "--large-share", "0.4", "--json")
    threshold = json.loads(told.stdout)["threshold"]
    heldout = read_graded([GRADED / "heldout.jsonl.gz"])
    is_large = score_rows(heldout, shipped_weights()) >= threshold
    assert is_large.mean() <= 0.4
    assert heldout.gains[is_large].sum() / heldout.gains.sum() >= 0.7
