"""Small tokenizers of several families, trained on the spot."""

import json

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

import text.tokenizer

CORPUS = [
    "The quick brown fox jumps over the lazy dog. 17 + 25 = 42!",
    "Größe, naïve café, Ελληνικά, русский, 日本語のテキスト、中文文本, 한국어",
    "emoji 👍🏽 👩‍👩‍👧‍👦 🇫🇷 and marks é ạ̈ ﷽ \u200d\n\tdef f(x):\n    return {'a': x}",
]
SPECIAL = ["<s>", "</s>", "<unk>", "<|im_start|>", "<|im_end|>"]


def make_byte_level() -> text.tokenizer.Tokenizer:
    """Like Llama 3 and Qwen. It has few merges, so that most non-ASCII characters are split over several tokens."""
    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    inner.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    trainer = trainers.BpeTrainer(
        vocab_size=330,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    inner.train_from_iterator(CORPUS, trainer)
    inner.add_tokens([AddedToken("<｜tool▁sep｜>", special=False)])
    inner.add_special_tokens(["<tool_call>"])
    return wrap(inner)


def make_sentencepiece() -> text.tokenizer.Tokenizer:
    """Like Llama 2 and Mistral: words begin with a mark for the space, and unknown characters become byte tokens."""
    inner = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    inner.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    inner.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    byte_tokens = [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = trainers.BpeTrainer(vocab_size=600, special_tokens=SPECIAL + byte_tokens, show_progress=False)
    # Trained only on plain letters, so that everything else falls back to bytes.
    inner.train_from_iterator(["the quick brown fox jumps over the lazy dog a b c d " * 3], trainer)
    spelled = json.loads(inner.to_str())
    spelled["added_tokens"] = [token for token in spelled["added_tokens"] if token["content"] in SPECIAL]
    return wrap(Tokenizer.from_str(json.dumps(spelled)))


def make_word_pieces() -> text.tokenizer.Tokenizer:
    """A decoder that does more than concatenate."""
    inner = Tokenizer(models.WordPiece(unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.Split(Regex(r"\s+"), "removed")
    inner.decoder = decoders.WordPiece(prefix="##", cleanup=False)
    trainer = trainers.WordPieceTrainer(vocab_size=200, special_tokens=SPECIAL, show_progress=False)
    inner.train_from_iterator(CORPUS, trainer)
    return wrap(inner)


def make_unigram() -> text.tokenizer.Tokenizer:
    """Like T5: the control tokens are part of the vocabulary, like any other piece."""
    pieces = [(token, 0.0) for token in SPECIAL] + [(char, -9.0) for char in sorted(set("".join(CORPUS)))]
    inner = Tokenizer(models.Unigram(pieces, unk_id=SPECIAL.index("<unk>")))
    inner.decoder = decoders.Fuse()
    inner.add_special_tokens(SPECIAL)
    return wrap(inner)


def wrap(inner: Tokenizer) -> text.tokenizer.Tokenizer:
    special = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    return text.tokenizer.Tokenizer(inner.to_str(), special_tokens=special)


def add_tokens(tokenizer_json: str, tokens: list[AddedToken]) -> str:
    """The tokenizer with more tokens, special or not by their flags."""
    inner = Tokenizer.from_str(tokenizer_json)
    inner.add_special_tokens([token for token in tokens if token.special])
    inner.add_tokens([token for token in tokens if not token.special])
    return inner.to_str()
