"""`python -m demo.grade --out FILE`: grade both demo models on the corpus, in the format of `tiergate router`."""

import argparse
import asyncio
import json
from pathlib import Path

from demo.corpus.build import draw_items, heldout_items, read_plans
from demo.corpus.items import Item
from demo.replies import ask_all, running_worker, shown_answer, wire_messages

DEMO = Path(__file__).parent
TRAINING_ITEMS_PER_HELDOUT = 4
WEIGHT = 0.5
"""The weight of a row relative to one of a real benchmark, since the corpus repeats few forms."""


def first_training_items() -> list[Item]:
    """Training items with the same mix of skills as the held-out set."""
    seed, plans = read_plans()
    return [
        item
        for name, plan in plans.items()
        for item in draw_items(name, TRAINING_ITEMS_PER_HELDOUT * plan.heldout, seed=seed, is_heldout=False)
    ]


def ask_model(size: str, items: list[Item]) -> list[bool]:
    """Whether each greedy reply is exactly the right answer."""
    with running_worker(DEMO / "models" / size, name=size, adapters={}) as url:
        replies = asyncio.run(ask_all(url, size, items))
    return [reply.text == shown_answer(item) for item, reply in zip(items, replies, strict=True)]


def graded_line(item: Item, *, weak_correct: bool, strong_correct: bool) -> str:
    row = {
        "source": "demo",
        "weight": WEIGHT,
        "messages": wire_messages(item.prompt),
        "tools": item.tools,
        "weak_correct": weak_correct,
        "strong_correct": strong_correct,
    }
    return json.dumps(row, ensure_ascii=False)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m demo.grade", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="file of JSON lines to write")
    parser.add_argument("--heldout", action="store_true", help="the held-out items instead of training items")
    arguments = parser.parse_args()
    items = heldout_items() if arguments.heldout else first_training_items()
    weak, strong = (ask_model(size, items) for size in ("small", "large"))
    lines = [
        graded_line(item, weak_correct=is_weak, strong_correct=is_strong)
        for item, is_weak, is_strong in zip(items, weak, strong, strict=True)
    ]
    arguments.out.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    print(f"{len(items)} items: small {sum(weak) / len(items):.1%} right, large {sum(strong) / len(items):.1%}")


if __name__ == "__main__":
    main()
