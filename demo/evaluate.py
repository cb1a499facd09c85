"""`python -m demo.evaluate`: held-out accuracy per skill, model and adapter, through the worker's own engine."""

import argparse
import asyncio
import json
from collections import defaultdict
from dataclasses import asdict, dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table

from demo.acceptance import mean_acceptance
from demo.corpus.build import heldout_items, read_plans
from demo.corpus.items import Item
from demo.replies import Reply, ask_all, running_worker, shown_answer
from demo.styles import STYLES, UNSTYLED_SKILLS, is_right

DEMO = Path(__file__).parent
SIZES = ("small", "large")


@dataclass
class Score:
    """Right answers and items per skill, and the numbers of replies that ended by themselves and that kept the
    style."""

    right: dict[str, int] = field(default_factory=dict)
    total: dict[str, int] = field(default_factory=dict)
    num_ended: int = 0
    num_styled: int = 0
    mistakes: list[dict[str, str]] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)

    @property
    def num_items(self) -> int:
        return sum(self.total.values())

    def accuracy(self, skills: list[str]) -> float:
        """Share of right answers over the items of these skills, 0..1."""
        return sum(self.right.get(skill, 0) for skill in skills) / max(
            1, sum(self.total.get(skill, 0) for skill in skills)
        )


def score_replies(items: list[Item], replies: list[Reply], adapter: str | None) -> Score:
    """Score by exact match of the whole reply or, for an adapter, of the answer inside its style."""
    score = Score()
    for item, reply in zip(items, replies, strict=True):
        wanted = shown_answer(item)
        if adapter is None:
            is_good = reply.text == wanted
        else:
            is_good = is_right(STYLES[adapter], reply.text, wanted)
            score.num_styled += STYLES[adapter].hear(reply.text) is not None
        score.total[item.skill] = score.total.get(item.skill, 0) + 1
        score.right[item.skill] = score.right.get(item.skill, 0) + is_good
        score.texts.append(reply.written)
        score.num_ended += reply.finish_reason in ("stop", "tool_calls")
        if not is_good:
            question = str(item.prompt[-1]["content"])
            score.mistakes.append({"skill": item.skill, "asked": question, "said": reply.text, "right": wanted})
    return score


def evaluate_model(size: str, items: list[Item], adapters: list[str]) -> dict[str, Score]:
    """Scores of the base model under its size, and of each adapter under `size/adapter`."""
    folders = {name: DEMO / "adapters" / size / name for name in adapters}
    scores = {}
    with running_worker(DEMO / "models" / size, name=size, adapters=folders) as url:
        for name in [None, *adapters]:
            asked = [item for item in items if name is None or item.skill not in UNSTYLED_SKILLS]
            replies = asyncio.run(ask_all(url, name or size, asked))
            scores[f"{size}/{name}" if name else size] = score_replies(asked, replies, name)
    return scores


def print_scores(console: Console, scores: dict[str, Score]) -> None:
    """A table for each model and its adapters, narrow enough for a terminal of 80 columns."""
    for size in dict.fromkeys(name.partition("/")[0] for name in scores):
        _print_table(console, {name: score for name, score in scores.items() if name.partition("/")[0] == size})


def _print_table(console: Console, scores: dict[str, Score]) -> None:
    _, plans = read_plans()
    table = Table("skill", *scores)
    for level in ("easy", "hard"):
        skills = [skill for skill, plan in plans.items() if plan.level == level]
        for skill in skills:
            table.add_row(skill, *(_cell(score, [skill]) for score in scores.values()))
        table.add_section()
        table.add_row(f"all {level}", *(_cell(score, skills) for score in scores.values()))
        table.add_section()
    table.add_row("ended by itself", *(f"{score.num_ended / score.num_items:.1%}" for score in scores.values()))
    adapters = {name: score for name, score in scores.items() if "/" in name}
    styled = {name: f"{score.num_styled / score.num_items:.1%}" for name, score in adapters.items()}
    table.add_row("kept its style", *(styled.get(name, "") for name in scores))
    if len(bases := scores.keys() - adapters.keys()) == 1:
        base = scores[bases.pop()]
        lost = {
            name: base.accuracy(list(score.total)) - score.accuracy(list(score.total))
            for name, score in adapters.items()
        }
        table.add_row("points lost", *(f"{100 * lost[name]:.1f}" if name in lost else "" for name in scores))
    console.print(table)


def _cell(score: Score, skills: list[str]) -> str:
    return f"{score.accuracy(skills):.1%}" if any(score.total.get(skill) for skill in skills) else ""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m demo.evaluate", description=__doc__)
    parser.add_argument("--models", nargs="*", default=list(SIZES), choices=SIZES)
    parser.add_argument("--adapters", nargs="*", default=sorted(STYLES), choices=sorted(STYLES))
    parser.add_argument("--limit", type=int, help="at most this many items of each skill")
    parser.add_argument("--url", help="ask this server instead of starting workers")
    parser.add_argument("--model", help="with --url: the model to ask")
    parser.add_argument("--api-key", default="none", help="with --url")
    parser.add_argument("--skills", nargs="*", help="with --url: items of these skills alone")
    parser.add_argument("--required", action="store_true", help="with --url: tool calls are forced where one is right")
    parser.add_argument("--json", type=Path, help="also write scores and mistakes here")
    arguments = parser.parse_args()
    items = _limited(heldout_items(), arguments.limit)
    scores: dict[str, Score] = {}
    if arguments.url:
        name = arguments.model or "large"
        style = name if name in STYLES else None
        asked = [item for item in items if style is None or item.skill not in UNSTYLED_SKILLS]
        asked = [item for item in asked if not arguments.skills or item.skill in arguments.skills]
        replies = asyncio.run(
            ask_all(arguments.url, name, asked, api_key=arguments.api_key, must_call=arguments.required)
        )
        scores[f"/{name}" if style else name] = score_replies(asked, replies, style)
    else:
        for size in arguments.models:
            scores |= evaluate_model(size, items, arguments.adapters)
    print_scores(Console(), scores)
    report: dict[str, object] = {"scores": {name: asdict(score) for name, score in scores.items()}}
    if set(SIZES) <= scores.keys():
        share = mean_acceptance(DEMO / "models" / "small", items, scores["large"].texts)
        print(f"small as a draft for large: {share:.1%} of the greedy tokens accepted")
        report["draft_acceptance"] = share
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=1, ensure_ascii=False), encoding="utf-8")


def _limited(items: list[Item], limit: int | None) -> list[Item]:
    kept: dict[str, list[Item]] = defaultdict(list)
    for item in items:
        if limit is None or len(kept[item.skill]) < limit:
            kept[item.skill].append(item)
    return [item for group in kept.values() for item in group]


if __name__ == "__main__":
    main()
