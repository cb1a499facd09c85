import json
import random
from pathlib import Path

import pytest

from router.weights import VERSION
from tests.support.cli import refusal, tiergate

EASY, HARD = (
    ("What colour is the {}?", "Name a {}."),
    ("Prove the theorem about the {} step by step.", "Integrate the {} twice."),
)
NOUNS = ["sky", "sea", "lake", "tree", "stone", "river", "house", "garden", "cloud", "mountain"]


def graded_rows(num_rows: int, *, seed: int) -> list[dict[str, object]]:
    """The large model is right on all, the small one on easy ones, with one in ten the other way round."""
    rng = random.Random(seed)
    rows = []
    for number in range(num_rows):
        is_hard = rng.random() < 0.4
        prompt = rng.choice(HARD if is_hard else EASY).format(" and ".join(rng.sample(NOUNS, 2)))
        is_weak_right = is_hard == (rng.random() < 0.1)
        rows.append(
            {"source": f"topic/{number % 7}", "prompt": prompt, "weak_correct": is_weak_right, "strong_correct": True}
        )
    return rows


def write(path: Path, rows: list[dict[str, object]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def test_train_evaluate_and_calibrate_work_on_ones_own_prompts(tmp_path: Path) -> None:
    data, other = (write(tmp_path / f"{seed}.jsonl", graded_rows(400, seed=seed)) for seed in (1, 2))
    out = str(tmp_path / "weights.bin")
    trained = tiergate("router", "train", "--data", data, "--out", out, "--note", "a test")
    assert trained.returncode == 0, trained.stderr
    assert "held out" in trained.stdout
    [row] = json.loads(tiergate("router", "evaluate", "--data", other, "--weights", out, "--json").stdout)
    assert row["apgr"] > 0.65 and row["apgr_95"][0] > 0.5
    assert row["ece"] < 0.1
    told = json.loads(
        tiergate("router", "calibrate", "--data", other, "--weights", out, "--large-share", "0.4", "--json").stdout
    )
    assert told["large_share"] <= 0.4 and told["recovered"] > 0.6
    assert 0 < told["threshold"] < 1
    costs = ("--cost", "1.4", "--small-cost", "1", "--large-cost", "2", "--json")
    by_cost = json.loads(tiergate("router", "calibrate", "--data", other, "--weights", out, *costs).stdout)
    assert by_cost == told | {"cost": pytest.approx(1 + told["large_share"])}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ((), "either --large-share or --cost"),
        (("--large-share", "0.4", "--cost", "1"), "either --large-share or --cost"),
        (("--cost", "1"), "needs --small-cost and --large-cost"),
        (("--cost", "0.5", "--small-cost", "1", "--large-cost", "2"), "the small model alone costs 1"),
        (("--cost", "1", "--small-cost", "2", "--large-cost", "2"), "must cost more"),
        (("--cost", "nan", "--small-cost", "1", "--large-cost", "2"), "--cost"),
        (("--cost", "1", "--small-cost", "1", "--large-cost", "inf"), "must cost more"),
    ],
    ids=str,
)
def test_a_cost_that_cannot_be_held_is_refused_in_one_line(tmp_path: Path, options: tuple[str, ...], said: str) -> None:
    data = write(tmp_path / "graded.jsonl", graded_rows(20, seed=3))
    assert said in refusal("router", "calibrate", "--data", data, *options)


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([], "no rows"),
        ([{"prompt": "Hi", "weak_correct": True, "strong_correct": True}] * 50, "nothing to learn"),
        ([{"prompt": "Hi", "weak_correct": False, "strong_correct": True}] * 50, "nothing to learn"),
        ([{"prompt": "Hi", "weak_correct": True}], "strong_correct"),
        ([{"weak_correct": True, "strong_correct": True}], "prompt or messages"),
        ([{"prompt": "Hi", "weak_correct": True, "strong_correct": True, "weight": -1}], "weight"),
    ],
)
def test_data_that_teaches_nothing_is_refused_in_one_line(
    tmp_path: Path, rows: list[dict[str, object]], said: str
) -> None:
    data = write(tmp_path / "graded.jsonl", rows)
    assert said in refusal("router", "train", "--data", data, "--out", str(tmp_path / "weights.bin"))
    assert not (tmp_path / "weights.bin").exists()


def test_weights_and_shares_that_cannot_be_used_are_refused_in_one_line(tmp_path: Path) -> None:
    data = write(tmp_path / "graded.jsonl", graded_rows(20, seed=3))
    bad = tmp_path / "weights.bin"
    bad.write_bytes(b"tiergate-router\n" + VERSION.to_bytes(2, "little") + b" and no more")
    assert "truncated" in refusal("router", "evaluate", "--data", data, "--weights", str(bad))
    assert "--large-share" in refusal("router", "calibrate", "--data", data, "--large-share", "1.5")
    assert "nowhere" in refusal("router", "evaluate", "--data", str(tmp_path / "nowhere"))
