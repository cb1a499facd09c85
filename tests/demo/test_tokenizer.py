from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer

from demo.chat import END, END_OF_TEXT, START, render_chat
from demo.corpus.build import SKILLS, draw_items
from demo.tokenizer import VOCAB_SIZE, load_tokenizer, save_tokenizer, train_tokenizer, training_texts

MODELS = Path(__file__).parents[2] / "demo" / "models"
TOKENIZER = load_tokenizer(MODELS / "small")


@given(st.text())
def test_any_text_comes_back(text: str) -> None:
    for mark in (END, END_OF_TEXT, START):
        text = text.replace(mark, "")
    assert TOKENIZER.decode(TOKENIZER.encode(text).ids) == text


def test_both_models_share_one_tokenizer_of_4096_tokens() -> None:
    assert TOKENIZER.get_vocab_size() == VOCAB_SIZE == 4096
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        assert (MODELS / "small" / name).read_bytes() == (MODELS / "large" / name).read_bytes()


def test_every_digit_is_a_token() -> None:
    assert TOKENIZER.encode("1234+5").tokens == ["1", "2", "3", "4", "+", "5"]


@pytest.mark.parametrize("name", sorted(SKILLS))
def test_the_template_renders_what_training_saw(name: str) -> None:
    tokenizer = AutoTokenizer.from_pretrained(MODELS / "small")
    for item in draw_items(name, 10, seed=5, is_heldout=True):
        tools = item.tools or None
        whole = tokenizer.apply_chat_template(item.messages, tools=tools, tokenize=False)
        assert whole == render_chat(item.messages, item.tools)
        prompt = tokenizer.apply_chat_template(item.prompt, tools=tools, tokenize=False, add_generation_prompt=True)
        assert prompt == render_chat(item.prompt, item.tools, add_generation_prompt=True)
        assert whole.startswith(prompt)
        assert whole.endswith(f"{END}\n")


def test_call_arguments_may_be_a_string_of_json() -> None:
    call = {"type": "function", "function": {"name": "get_time", "arguments": '{"city": "Oslo"}'}}
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": None, "tool_calls": [call]}]
    text = AutoTokenizer.from_pretrained(MODELS / "small").apply_chat_template(messages, tokenize=False)
    assert text.endswith('<tool_call>\n{"name": "get_time", "arguments": {"city": "Oslo"}}\n</tool_call><|im_end|>\n')


def test_training_it_again_gives_the_same_tokenizer(tmp_path: Path) -> None:
    items = [
        item
        for name in sorted(SKILLS)
        for item in draw_items(name, 400 if name != "long_conversation" else 20, seed=1, is_heldout=False)
    ]
    trained = [train_tokenizer(training_texts(items)) for _ in range(2)]
    assert trained[0].to_str() == trained[1].to_str()
    save_tokenizer(trained[0], tmp_path)
    assert load_tokenizer(tmp_path).to_str() == trained[0].to_str()
