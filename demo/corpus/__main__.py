"""`python -m demo.corpus [--out DIR] [--show N]`: write the corpus as JSON lines, or print some items of each skill."""

import argparse
import json
from collections import Counter
from pathlib import Path

from demo.corpus.build import heldout_items, training_items


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m demo.corpus", description=__doc__)
    parser.add_argument(
        "--out", type=Path, default=Path("demo/.work/corpus"), help="folder for train.jsonl and heldout.jsonl"
    )
    parser.add_argument(
        "--show", type=int, default=0, metavar="N", help="print N held-out items of each skill and write nothing"
    )
    arguments = parser.parse_args()
    heldout = heldout_items()
    if arguments.show:
        shown: Counter[str] = Counter()
        for item in heldout:
            if shown[item.skill] < arguments.show:
                shown[item.skill] += 1
                print(json.dumps(item.to_json(), ensure_ascii=False))
        return
    arguments.out.mkdir(parents=True, exist_ok=True)
    for name, items in (("train", training_items()), ("heldout", heldout)):
        path = arguments.out / f"{name}.jsonl"
        with path.open("w", encoding="utf-8") as file:
            file.writelines(json.dumps(item.to_json(), ensure_ascii=False) + "\n" for item in items)
        num_distinct = len({json.dumps(item.messages, sort_keys=True) for item in items})
        print(f"{path}: {len(items)} items, {num_distinct} distinct, {len({item.skill for item in items})} skills")


if __name__ == "__main__":
    main()
