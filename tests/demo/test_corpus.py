import random

import pytest

from demo.corpus.arithmetic import reduce_expression, worked_product
from demo.corpus.build import SKILLS, draw_items, heldout_items, read_plans
from demo.corpus.items import Draw
from demo.corpus.letters import hyphenate
from demo.corpus.words import HELDOUT_WORDS

SKILL_NAMES = sorted(SKILLS)


def _drawn(name: str, num_items: int, *, seed: int = 7, is_heldout: bool = False) -> list[object]:
    return [item.to_json() for item in draw_items(name, num_items, seed=seed, is_heldout=is_heldout)]


@pytest.mark.parametrize("name", SKILL_NAMES)
def test_the_same_seed_draws_the_same_items(name: str) -> None:
    assert _drawn(name, 20) == _drawn(name, 20)
    assert _drawn(name, 20) != _drawn(name, 20, seed=8)


@pytest.mark.parametrize("name", SKILL_NAMES)
def test_no_heldout_question_is_trained_on(name: str) -> None:
    num_heldout = 4 if name == "long_conversation" else 30
    heldout = {_key(item.prompt, item.tools) for item in draw_items(name, num_heldout, seed=7, is_heldout=True)}
    trained = {_key(item.prompt, item.tools) for item in draw_items(name, 1500, seed=7, is_heldout=False)}
    assert len(heldout) > num_heldout * 0.8
    assert not heldout & trained


def _key(messages: list[dict[str, object]], tools: list[dict[str, object]]) -> str:
    """The whole prompt, the way it is typed aside: a held-out phrasing stays one in lower case."""
    return repr((messages, tools)).lower().replace(", please", "").replace(" please", "")


def test_templates_and_entities_of_the_splits_are_disjoint() -> None:
    templates = [f"form {at}" for at in range(12)]
    train, heldout = (Draw(random.Random(1), is_heldout=is_heldout) for is_heldout in (False, True))
    assert not {train.template(templates) for _ in range(300)} & {heldout.template(templates) for _ in range(300)}
    entities = [f"entity {at}" for at in range(100)]
    seen = [{draw.entity(entities) for _ in range(2000)} for draw in (train, heldout)]
    assert not seen[0] & seen[1]
    assert seen[0] | seen[1] == set(entities)


@pytest.mark.parametrize("name", ["spelling", "reversing", "letter_count"])
def test_heldout_words_are_never_spelled_in_training(name: str) -> None:
    answers = {item.answer for item in draw_items(name, 4000, seed=7, is_heldout=False)}
    spelled = {hyphenate(word[::-1] if name == "reversing" else word) for word in HELDOUT_WORDS}
    assert not answers & spelled


def test_every_skill_has_a_plan_and_both_levels_exist() -> None:
    _, plans = read_plans()
    assert set(plans) == set(SKILLS)
    assert {plan.level for plan in plans.values()} == {"easy", "hard"}
    assert sum(plan.train for plan in plans.values()) >= 50_000
    assert len(heldout_items()) == sum(plan.heldout for plan in plans.values())


def test_worked_steps_are_right() -> None:
    assert worked_product(23, 14) == "23 * 14 = 230 + 92 = 322"
    assert worked_product(7, 8) == "7 * 8 = 56"
    assert reduce_expression([12, 7, 3, 4], ["+", "*", "-"]) == ("7 * 3 = 21", "12 + 21 = 33", "33 - 4 = 29")
    assert reduce_expression([1, 2, 3], ["-", "-"]) is None


@pytest.mark.parametrize("name", ["addition", "subtraction", "multiplication", "multi_step"])
def test_every_line_of_an_arithmetic_answer_holds(name: str) -> None:
    for item in draw_items(name, 200, seed=3, is_heldout=False):
        for line in item.answer.splitlines():
            values = {eval(side) for side in line.split(" = ")}
            assert len(values) == 1, line
