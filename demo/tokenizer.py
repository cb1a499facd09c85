"""The tokenizer that all demo models share: byte-level BPE of 4,096 tokens over the training corpus."""

import json
from collections.abc import Iterable
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from demo.chat import END, END_OF_TEXT, START, TEMPLATE_FILE, TOOL_CALL, TOOL_CALL_END, render_chat
from demo.corpus.items import Item

VOCAB_SIZE = 4096
CONTEXT_WINDOW = 2048
# Words include their leading space. Every digit is a token, so that the digits of numbers line up. A lower-case word in
# single quotes is split into letters: quoted words are to be spelled, and pieces of words do not show their letters.
_QUOTED = "|".join(["'", *(f"'[a-z]{{{length}}}" for length in range(1, 15))])
_PIECES = rf"(?<={_QUOTED})[a-z](?=[a-z]*')| ?\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+|\s+(?!\S)|\s+"


def train_tokenizer(texts: Iterable[str]) -> Tokenizer:
    """Ids 0 to 2 are the end of text and the start and end of a turn. Tool call marks are not special, so they are
    decoded as text."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    marks = [AddedToken(mark, special=True, normalized=False) for mark in (END_OF_TEXT, START, END)]
    marks += [AddedToken(mark, special=False, normalized=False) for mark in (TOOL_CALL, TOOL_CALL_END)]
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=marks,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    if tokenizer.get_vocab_size() != VOCAB_SIZE:
        raise ValueError(f"the corpus gives only {tokenizer.get_vocab_size()} tokens, not {VOCAB_SIZE}")
    return tokenizer


def training_texts(items: Iterable[Item]) -> Iterable[str]:
    return (render_chat(item.messages, item.tools) for item in items)


def save_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    """Write tokenizer.json, tokenizer_config.json and chat_template.jinja as Hugging Face tools read them."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    template = TEMPLATE_FILE.read_text(encoding="utf-8")
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": CONTEXT_WINDOW,
        "bos_token": None,
        "eos_token": END,
        "pad_token": END_OF_TEXT,
        "add_bos_token": False,
        "clean_up_tokenization_spaces": False,
        "chat_template": template,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    (folder / "chat_template.jinja").write_text(template, encoding="utf-8")


def load_tokenizer(folder: Path) -> Tokenizer:
    return Tokenizer.from_file(str(folder / "tokenizer.json"))
