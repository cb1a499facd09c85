import json
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import ProtocolError
from protocol.messages import FunctionDefinition, Tool, UserMessage
from tests.support.vocabularies import make_byte_level
from text.bundle import Bundle, TextTooLong
from text.folder import FolderError

TEMPLATE = "{{ bos_token }}{{ tools }}{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}"
CHAT = [UserMessage(content="Hi 👍")]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "tokenizer.json").write_text(make_byte_level().tokenizer_json)
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps({"bos_token": {"content": "<s>"}, "eos_token": "</s>", "pad_token": None, "chat_template": TEMPLATE})
    )
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [4]}))
    return tmp_path


def test_a_bundle_counts_the_same_after_travelling(folder: Path) -> None:
    bundle = Bundle.from_folder(folder, max_model_len=99)
    arrived = Bundle.from_bytes(bundle.to_bytes())
    tools = [Tool(function=FunctionDefinition(name="f"))]
    assert arrived.max_model_len == 99
    assert arrived.tokenizer.eos_token_ids == bundle.tokenizer.eos_token_ids == {1, 4}
    assert len(arrived.encode_text("Hi 👍")) == len(bundle.encode_text("Hi 👍")) > 1
    assert len(arrived.encode_chat(CHAT)) == len(bundle.encode_chat(CHAT))
    assert len(arrived.encode_chat(CHAT, tools)) == len(bundle.encode_chat(CHAT, tools)) > len(bundle.encode_chat(CHAT))


def test_special_tokens_are_written_once(folder: Path) -> None:
    bundle = Bundle.from_folder(folder)
    assert bundle.encode_chat(CHAT).count(0) == 1
    assert bundle.encode_text("Hi").count(0) == 1


def test_a_template_file_wins_over_the_configuration(folder: Path) -> None:
    (folder / "chat_template.jinja").write_text("file")
    assert Bundle.from_folder(folder).render_chat(CHAT) == "file"


def test_named_templates_are_read(folder: Path) -> None:
    named = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "tools"}]
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": named}))
    bundle = Bundle.from_folder(folder)
    assert bundle.render_chat(CHAT, [Tool(function=FunctionDefinition(name="f"))]) == "tools"


def test_a_model_without_a_template_refuses_chat(folder: Path) -> None:
    (folder / "tokenizer_config.json").write_text("{}")
    with pytest.raises(ProtocolError, match="no chat template"):
        Bundle.from_folder(folder).encode_chat(CHAT)


def test_a_text_that_cannot_fit_is_refused_without_encoding_it(folder: Path) -> None:
    bundle = Bundle.from_folder(folder)
    with pytest.raises(TextTooLong) as caught:
        bundle.encode_text("The quick brown fox. " * 5000, limit=1000)
    assert 1000 < caught.value.least_tokens <= len(bundle.encode_text("The quick brown fox. " * 5000))
    with pytest.raises(TextTooLong):
        bundle.encode_chat([UserMessage(content="x" * 200_000)], limit=1000)


@given(text=st.text())
def test_the_bound_is_never_above_the_count(text: str) -> None:
    tokenizer = make_byte_level()
    assert tokenizer.least_tokens(text) <= len(tokenizer.encode(text, add_special_tokens=False))


def test_a_long_text_does_not_stop_other_threads() -> None:
    """The library's plain `encode` holds the interpreter's lock for seconds."""
    tokenizer, text = make_byte_level(), "word " * 400_000
    num_turns = 0
    with ThreadPoolExecutor(1) as pool:
        counting = pool.submit(tokenizer.encode, text, add_special_tokens=False)
        while not counting.done():
            time.sleep(0.001)
            num_turns += 1
    assert num_turns > 20


@pytest.mark.parametrize(
    ("name", "content"),
    [("tokenizer.json", None), ("tokenizer.json", "{}"), ("tokenizer_config.json", "[1]"), ("tokenizer.json", "{")],
)
def test_a_broken_folder_is_one_line_naming_the_file(folder: Path, name: str, content: str | None) -> None:
    path = folder / name
    path.unlink()
    if content is not None:
        path.write_text(content)
    with pytest.raises(FolderError) as caught:
        Bundle.from_folder(folder)
    assert name in str(caught.value)
    assert "\n" not in str(caught.value)
