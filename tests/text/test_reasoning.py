import random

import pytest

from tests.support.templates import HERMES, LLAMA
from text.reasoning import ReasoningReader, detect_reasoning, is_thinking_begun

CASES = [
    ("<think>\nHm, 2 < 3.\n</think>\n\nThree.", ("Hm, 2 < 3.", "Three.")),
    ("\n<think></think>Three. <think>no</think>", ("", "Three. <think>no</think>")),
    ("<think>a </thin b\n\n c</think>", ("a </thin b\n\n c", "")),
    ("<think>never ends </th", ("never ends </th", "")),
    ("Just text <think>", ("", "Just text <think>")),
    ("<thin", ("", "<thin")),
    ("  ", ("", "  ")),
    ("", ("", "")),
]
BEGUN = [("Hm.\n</think>\nThree.", ("Hm.", "Three.")), ("cut", ("cut", "")), ("</think>x", ("", "x"))]


def read(text: str, cuts: list[int], *, is_begun: bool) -> tuple[str, str, int]:
    reader = ReasoningReader("think", is_begun=is_begun)
    said, answer = "", ""
    for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True):
        thought, rest = reader.add(text[start:end])
        said, answer = said + thought, answer + rest
    thought, rest = reader.flush()
    return said + thought, answer + rest, reader.num_held


@pytest.mark.parametrize(
    ("text", "expected", "is_begun"), [(*case, False) for case in CASES] + [(*case, True) for case in BEGUN]
)
def test_thoughts_are_told_apart_wherever_the_text_is_cut(text: str, expected: tuple[str, str], is_begun: bool) -> None:
    chance = random.Random(0)
    cuts = [[], list(range(1, len(text)))]
    cuts += [sorted(chance.sample(range(len(text) + 1), min(3, len(text)))) for _ in range(50)]
    for each in cuts:
        assert read(text, each, is_begun=is_begun)[:2] == expected


def test_a_thought_is_not_delayed() -> None:
    reader = ReasoningReader("think", is_begun=False)
    assert reader.add("<think>") == ("", "")
    assert reader.add("\nHm") == ("Hm", "")
    assert reader.add(", so") == (", so", "")
    assert reader.add("</think>\n\nT") == ("", "T")


def test_whether_a_model_thinks_is_what_its_template_shows() -> None:
    assert detect_reasoning([HERMES.template]) == "think"
    assert detect_reasoning([LLAMA.template]) is None
    assert detect_reasoning(["[THINK]"]) == "mistral"
    assert is_thinking_begun("think", "<|im_start|>assistant\n<think>\n")
    assert not is_thinking_begun("think", "<|im_start|>assistant\n<think>\n\n</think>\n\n")
