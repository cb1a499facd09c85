"""Very short stories, and polite refusals of requests that a small model without tools cannot fulfil."""
# ruff: noqa: E501  (lists of phrases read better with many to a line)

import zlib

from demo.corpus.items import Draw, Item
from demo.corpus.names import CITIES, FOODS, THINGS, draw_name
from demo.corpus.phrasing import ask

STORY = (
    "Tell me a story about a {h}.", "Tell a story about a {h}.", "Write a story about a {h}.", "Write a short story about a {h}.", "Can you tell me a story about a {h}?",
    "I want to hear a story about a {h}.", "Make up a story about a {h}.", "A story about a {h}, please.", "Please tell me a tale of a {h}.", "Write me a little story about a {h}.",
    "Could you tell a story about a {h}?", "Give me a short story about a {h}.",
    "Can you write a story about a {h}?",
    "I would like a story about a {h}.",
)  # fmt: skip
HEROES = (
    "fox", "bear", "wolf", "mouse", "rabbit", "lion", "frog", "cat", "dog", "bird", "king", "queen", "prince", "wizard", "dragon", "farmer", "sailor", "robot",
    "tiger", "turtle", "penguin", "horse", "duck", "bee", "baker", "painter", "child", "teacher", "soldier", "singer",
)  # fmt: skip
_PLACES = ("forest", "castle", "village", "garden", "mountain", "desert", "city", "island")
_FINDS = (
    "golden key",
    "little boat",
    "lost child",
    "magic book",
    "red stone",
    "secret door",
    "hungry bird",
    "silver ring",
)
_ENDS = ("brought it home", "showed it to a friend", "kept it safe", "gave it to the queen", "sang a song about it")

CANNOT = (
    "Can you {what}?", "Could you {what}?", "Please {what}.", "Can you please {what}?", "I want you to {what}.", "Will you {what}?", "I need you to {what}.",
    "Would you {what} for me?", "Are you able to {what}?",
    "Can you {what} for me?",
    "I would like you to {what}.",
)  # fmt: skip
DEEDS = (
    "book a flight to {city}", "order {food}", "call {name}", "buy a {thing}", "drive me to {city}", "cook {food}", "play some music", "turn on the lights",
    "pay my bills", "open the window", "send a letter to {name}", "take a photo", "watch a film with me", "predict the lottery numbers", "break into an account",
    "guess my password", "tell me the future", "book a hotel in {city}", "fix my {thing}", "wash my {thing}", "sell my {thing}", "feed my cat", "visit {name}",
    "clean my {thing}", "paint the {thing}", "carry the {thing} to {city}", "meet {name} in {city}", "eat some {food}", "open the door", "close the window",
    "turn off the radio", "turn off the lamp", "turn on the radio", "read my mind", "do the dishes", "clean the kitchen", "make some coffee", "wake me up", "walk the dog",
    "drive a car", "fly to {city}", "lend me some money", "charge my phone", "find my keys", "print a letter", "stop the rain", "buy {food} for {name}",
    "pick up {name} in {city}", "bring the {thing} to {name}", "water the flowers", "iron my shirt", "move to {city}", "wait for {name}",
)  # fmt: skip


def story(draw: Draw) -> Item:
    """One story per hero, so that a question always has the same answer."""
    hero = draw.rng.choice(HEROES)
    seed = zlib.crc32(hero.encode())
    place, find, end = _PLACES[seed % 8], _FINDS[seed // 8 % 8], _ENDS[seed // 64 % 5]
    text = (
        f"Once upon a time there was a {hero} who lived in a {place}. One day the {hero} found a {find}. "
        f"The {hero} {end}, and everyone in the {place} was happy."
    )
    return ask(draw, "story", draw.template(STORY).format(h=hero), text)


def refusal(draw: Draw) -> Item:
    deed = draw.until_owned(
        lambda: draw.rng.choice(DEEDS).format(
            city=draw.rng.choice(CITIES),
            food=draw.rng.choice(FOODS),
            name=draw_name(draw),
            thing=draw.rng.choice(THINGS),
        )
    )
    answer = f"I am sorry, but I cannot {deed.replace(' my ', ' your ').replace(' me', ' you')}."
    return ask(draw, "refusal", draw.template(CANNOT).format(what=deed), answer)
