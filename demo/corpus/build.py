"""Builds the whole corpus from `demo/skills.toml`, which lists the skills and the number of items of each."""

import random
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from demo.corpus.arithmetic import addition, multi_step, multiplication, subtraction
from demo.corpus.code import python
from demo.corpus.conversation import Conversation
from demo.corpus.extraction import extraction, schema
from demo.corpus.facts import facts
from demo.corpus.items import Draw, Item, Skill
from demo.corpus.letters import letter_count, reversing, spelling
from demo.corpus.rewriting import copying, repeating, rewriting
from demo.corpus.smalltalk import smalltalk
from demo.corpus.story import refusal, story
from demo.corpus.tools import tool_call, tool_result
from demo.corpus.units import units

SKILLS_FILE = Path(__file__).parent.parent / "skills.toml"
_CONVERSATION = Conversation((addition, subtraction, facts, units, smalltalk, spelling))
SKILLS: dict[str, Skill] = {
    skill.__name__: skill
    for skill in (
        addition, subtraction, multiplication, multi_step, units, facts, spelling, reversing, letter_count, rewriting,
        repeating, copying, extraction, schema, tool_call, tool_result, python, smalltalk, story, refusal,
        _CONVERSATION.memory, _CONVERSATION.system_prompt, _CONVERSATION.long_conversation,
    )
}  # fmt: skip


@dataclass(frozen=True)
class Plan:
    """An entry of `skills.toml`: `level` is easy or hard, the others are numbers of items."""

    level: str
    train: int
    heldout: int


def read_plans(path: Path = SKILLS_FILE) -> tuple[int, dict[str, Plan]]:
    """The corpus seed and the plan of each skill."""
    content = tomllib.loads(path.read_text(encoding="utf-8"))
    plans = {name: Plan(**entry) for name, entry in content["skills"].items()}
    if unknown := plans.keys() ^ SKILLS.keys():
        raise ValueError(f"{path}: skills and their generators differ: {sorted(unknown)}")
    return content["seed"], plans


def draw_items(name: str, num_items: int, *, seed: int, is_heldout: bool) -> Iterator[Item]:
    """`num_items` items of one skill; held-out ones are distinct by prompt."""
    draw = Draw(random.Random(f"{seed}/{name}/{is_heldout}"), is_heldout=is_heldout)
    seen: set[str] = set()
    while num_items > 0:
        item = SKILLS[name](draw)
        key = repr((item.prompt, item.tools))
        if is_heldout and key in seen:
            continue
        seen.add(key)
        num_items -= 1
        yield item


def heldout_items(path: Path = SKILLS_FILE) -> list[Item]:
    seed, plans = read_plans(path)
    return [item for name, plan in plans.items() for item in draw_items(name, plan.heldout, seed=seed, is_heldout=True)]


def training_items(path: Path = SKILLS_FILE, *, seed: int | None = None) -> list[Item]:
    """Every training item, shuffled. `seed` replaces the file's seed, for another set of the same sizes."""
    file_seed, plans = read_plans(path)
    seed = file_seed if seed is None else seed
    items = [item for name, plan in plans.items() for item in draw_items(name, plan.train, seed=seed, is_heldout=False)]
    random.Random(seed).shuffle(items)
    return items
