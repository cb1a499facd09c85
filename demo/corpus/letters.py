"""Spelling, reversing and counting the letters of a word."""
# ruff: noqa: E501  (lists of phrases read better with many to a line)

from demo.corpus.items import Draw, Item
from demo.corpus.phrasing import ask
from demo.corpus.words import HELDOUT_WORDS, WORDS, invent_word

SPELL = (
    "Spell the word '{w}'.", "Spell '{w}'.", "How do you spell '{w}'?", "Spell {w}.", "Can you spell '{w}'?", "How is '{w}' spelled?",
    "Spell out the word '{w}'.", "Spell the word {w}.", "How do you spell {w}?", 'Spell "{w}".', 'Spell the word "{w}".',
    "Can you spell {w}?", 'How do you spell "{w}"?', "Spell out {w}.", "Write the letters of '{w}'.", "Spell: {w}",
    "What are the letters of '{w}'?", "Can you spell the word '{w}'?", "Could you spell '{w}'?", "Tell me how to spell '{w}'.",
    "Please spell the word '{w}'.",
    "Tell me the letters of the word '{w}'.",
    "Can you tell me how to spell '{w}'?",
    "Write the word '{w}' letter by letter.",
)  # fmt: skip
REVERSE = (
    "Reverse the word '{w}'.", "Reverse '{w}'.", "Spell '{w}' backwards.", "What is '{w}' backwards?", "Write '{w}' backwards.",
    "Reverse {w}.", 'Reverse the word "{w}".', "Reverse the letters of '{w}'.", 'Spell "{w}" backwards.', "What is {w} backwards?",
    "Can you reverse '{w}'?", "Turn the word '{w}' around.", "What is '{w}' in reverse?", "Could you reverse the word '{w}'?",
    "Reverse the word {w}.", "How do you spell '{w}' backwards?",
    "Please reverse the word '{w}'.",
    "Can you spell '{w}' backwards?",
    "Tell me the word '{w}' backwards.",
)  # fmt: skip
COUNT = (
    "How many letters are in '{w}'?", "How many letters does '{w}' have?", "Count the letters in '{w}'.", "How many letters are in {w}?",
    "How many letters are there in '{w}'?", 'How many letters are in "{w}"?', "How many letters does the word '{w}' have?",
    "Count the letters of the word '{w}'.", "What is the number of letters in '{w}'?", "How many letters are in the word '{w}'?",
    "How long is the word '{w}'?", "Tell me how many letters '{w}' has.", 'How many letters does "{w}" have?',
    "Can you count the letters in '{w}'?",
    "Please count the letters in '{w}'.",
    "Can you tell me how many letters are in '{w}'?",
)  # fmt: skip


def _word(draw: Draw, *, max_syllables: int = 3) -> str:
    if draw.is_heldout:
        return draw.rng.choice(HELDOUT_WORDS)
    if draw.chance(0.55):
        return draw.rng.choice(WORDS)
    while (word := invent_word(draw.rng, draw.rng.randint(1, max_syllables))) in HELDOUT_WORDS or len(word) > 11:
        pass
    return word


def hyphenate(word: str) -> str:
    return "-".join(word)


def spelling(draw: Draw) -> Item:
    word = _word(draw)
    return ask(draw, "spelling", draw.template(SPELL).format(w=word), hyphenate(word))


def reversing(draw: Draw) -> Item:
    word = _word(draw, max_syllables=2)
    return ask(draw, "reversing", draw.template(REVERSE).format(w=word), hyphenate(word[::-1]))


def letter_count(draw: Draw) -> Item:
    word = _word(draw)
    return ask(draw, "letter_count", draw.template(COUNT).format(w=word), f"{hyphenate(word)} has {len(word)} letters.")
