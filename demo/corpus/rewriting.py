"""Rewriting a sentence (upper case, past tense, plural) and repeating one word for word."""
# ruff: noqa: E501, SIM905  (lists of phrases read better with many to a line)

from demo.corpus.items import Draw, Item
from demo.corpus.names import CITIES, FOODS, NAMES, THINGS
from demo.corpus.phrasing import ask
from demo.corpus.words import WORDS, invent_word

UPPER = (
    "Write '{s}' in upper case.", "Convert '{s}' to upper case.", "Put '{s}' in capital letters.", "Write this in upper case: {s}",
    "Make this upper case: {s}", "Change '{s}' to capital letters.", "Turn '{s}' into upper case.", "In capital letters, please: {s}",
    "Rewrite in upper case: {s}", "Uppercase this: {s}", "Rewrite '{s}' in capital letters.", "Put this in upper case: {s}",
    "Can you write this in upper case: {s}",
    "Write '{s}' in capital letters.",
)  # fmt: skip
PAST = (
    "Put '{s}' in the past tense.", "Rewrite in the past tense: {s}", "Write this in the past tense: {s}", "Change '{s}' to the past tense.",
    "What is the past tense of '{s}'?", "Turn '{s}' into the past tense.", "Make this past tense: {s}", "Past tense of '{s}'?",
    "Rewrite '{s}' in the past tense.", "Convert to the past tense: {s}", "Say '{s}' in the past tense.", "Put this in the past tense: {s}",
    "Can you put this in the past tense: {s}",
    "Write '{s}' in the past tense.",
)  # fmt: skip
REPEAT = (
    "Repeat after me: {s}", "Say '{s}'.", "Repeat '{s}'.", "Say this: {s}", "Write '{s}'.", "Please repeat: {s}", "Repeat this sentence: {s}",
    "Echo: {s}", "Say exactly this: {s}", "Repeat the following: {s}", "Copy this sentence: {s}", "Now repeat this: {s}",
    "Please say: {s}",
    "Write exactly this: {s}",
)  # fmt: skip
COUNT = (
    "Count from {a} to {b}.", "Count from {a} up to {b}.", "List the numbers from {a} to {b}.", "Write the numbers from {a} to {b}.",
    "Can you count from {a} to {b}?", "Give me the numbers from {a} to {b}.", "Say the numbers from {a} to {b}.", "Please count from {a} to {b}.",
    "Can you list the numbers from {a} to {b}?",
    "Tell me the numbers from {a} to {b}.",
)  # fmt: skip
# (present, past, rest of the sentence)
VERBS = tuple(
    tuple(part.strip() for part in entry.split("/"))
    for entry in """
    walks/walked/to the park; runs/ran/to the station; eats/ate/{food}; buys/bought/a {thing}; sells/sold/a {thing}; cooks/cooked/{food};
    sees/saw/a {thing}; finds/found/a {thing}; loses/lost/a {thing}; goes/went/to school; drives/drove/to work; writes/wrote/a letter;
    reads/read/a story; sings/sang/a song; plays/played/in the garden; opens/opened/the door; closes/closed/the window; takes/took/a {thing};
    gives/gave/a {thing} away; makes/made/{food}; cleans/cleaned/the {thing}; paints/painted/the {thing}; wants/wanted/{food}; likes/liked/{food};
    brings/brought/a {thing}; breaks/broke/the {thing}; draws/drew/a {thing}; drinks/drank/tea; sleeps/slept/all day; works/worked/at home;
    visits/visited/the city; watches/watched/a film; needs/needed/a {thing}; keeps/kept/the {thing}; forgets/forgot/the {thing}; swims/swam/in the lake
    """.split(";")
)


def _sentence(draw: Draw) -> tuple[str, str]:
    """A sentence in the present and in the past tense. Held out by (subject, verb, object)."""
    rng = draw.rng

    def pick() -> tuple[str, str, str, str]:
        present, past, rest = rng.choice(VERBS)
        subject = rng.choice(
            (rng.choice(NAMES), "She", "He", "The " + rng.choice(("girl", "boy", "man", "woman", "teacher", "child")))
        )
        return subject, present, past, rest.format(food=rng.choice(FOODS), thing=rng.choice(THINGS))

    subject, present, past, rest = draw.until_owned(pick)
    return f"{subject} {present} {rest}.", f"{subject} {past} {rest}."


def rewriting(draw: Draw) -> Item:
    present, past = _sentence(draw)
    if draw.chance(0.5):
        text = present.rstrip(".")
        return ask(draw, "rewriting", draw.template(UPPER).format(s=text), text.upper(), is_casual=False)
    return ask(draw, "rewriting", draw.template(PAST).format(s=present), past, is_casual=False)


def repeating(draw: Draw) -> Item:
    """Repeat a sentence, or count between two numbers."""
    if draw.chance(0.4):
        first, length = draw.until_owned(lambda: (draw.rng.randint(0, 30), draw.rng.randint(3, 20)))
        numbers = ", ".join(map(str, range(first, first + length)))
        return ask(draw, "repeating", draw.template(COUNT).format(a=first, b=first + length - 1), numbers)
    text = draw.rng.choice(_sentence(draw)).rstrip(".")
    return ask(draw, "repeating", draw.template(REPEAT).format(s=text), text, is_casual=False)


def copying(draw: Draw) -> Item:
    """Repeat a list of unrelated words and numbers, which takes nothing but copying; other skills build on that."""

    def word() -> str:
        pools = (WORDS, WORDS, NAMES, CITIES, (str(draw.rng.randint(0, 999)), invent_word(draw.rng, 2)))
        return draw.rng.choice(draw.rng.choice(pools))

    text = draw.until_owned(lambda: " ".join(word() for _ in range(draw.rng.randint(3, 13))))
    return ask(draw, "copying", draw.template(REPEAT).format(s=text), text, is_casual=False)
