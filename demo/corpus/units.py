"""Conversion between units with a whole-number factor."""
# ruff: noqa: E501  (lists of phrases read better with many to a line)

from demo.corpus.items import Draw, Item
from demo.corpus.phrasing import ask

# (large unit singular, plural, small unit plural, factor, greatest count)
UNITS = (
    ("kilometer", "kilometers", "meters", 1000, 99), ("meter", "meters", "centimeters", 100, 99),
    ("kilogram", "kilograms", "grams", 1000, 99), ("liter", "liters", "milliliters", 1000, 99),
    ("hour", "hours", "minutes", 60, 12), ("minute", "minutes", "seconds", 60, 12), ("day", "days", "hours", 24, 7),
    ("week", "weeks", "days", 7, 12), ("year", "years", "months", 12, 12), ("foot", "feet", "inches", 12, 12),
    ("centimeter", "centimeters", "millimeters", 10, 99), ("dollar", "dollars", "cents", 100, 99), ("ton", "tons", "kilograms", 1000, 99),
)  # fmt: skip
CONVERT = (
    "How many {small} are in {count}?", "Convert {count} to {small}.", "How many {small} are there in {count}?", "What is {count} in {small}?",
    "{count} in {small}?", "{count} to {small}", "How many {small} is {count}?", "Express {count} in {small}.", "Change {count} into {small}.",
    "How much is {count} in {small}?", "Tell me how many {small} are in {count}.", "{count} equals how many {small}?",
    "How many {small} make {count}?", "Convert {count} into {small}.", "How many {small} do {count} have?", "Give me {count} in {small}.",
    "Can you convert {count} to {small}?",
    "Tell me how many {small} {count} are.",
    "How many {small} are {count}?",
)  # fmt: skip


def units(draw: Draw) -> Item:
    """Decimal conversions are also held out by count, the small tables (hours, weeks, feet) by phrasing only."""
    one, many, small, factor, limit = draw.rng.choice(UNITS)
    num = draw.rng.randint(1, limit)
    while limit > 12 and not draw.owns(many, small, num):
        num = draw.rng.randint(1, limit)
    count = f"{num} {one if num == 1 else many}"
    return ask(
        draw, "units", draw.template(CONVERT).format(count=count, small=small), f"{count} = {num * factor} {small}"
    )
