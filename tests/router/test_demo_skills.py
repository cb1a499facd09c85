"""On the demo models: `demo/graded` says which of their items each answered right (`python -m demo.grade`)."""

from pathlib import Path

import demo
from router.complexity import shipped_weights
from tiergate.routing.evaluate import score_rows, threshold_at
from tiergate.routing.graded import read_graded

GRADED = Path(demo.__file__).parent / "graded"


def test_auto_recovers_two_thirds_of_the_demos_accuracy_with_four_tenths_of_large_calls() -> None:
    """The threshold comes from training items, the accuracy from items kept aside."""
    threshold = threshold_at(read_graded([GRADED / "train.jsonl.gz"]), shipped_weights(), 0.4)["threshold"]
    heldout = read_graded([GRADED / "heldout.jsonl.gz"])
    is_large = score_rows(heldout, shipped_weights()) >= threshold
    assert is_large.mean() <= 0.4
    assert heldout.gains[is_large].sum() / heldout.gains.sum() >= 2 / 3
