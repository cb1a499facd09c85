"""Capitals and other simple facts. Facts cannot be guessed, so all are trained on, and only phrasings are held out."""
# ruff: noqa: E501  (lists of phrases read better with many to a line)

from demo.corpus.fact_tables import CAPITALS, TABLES, Table
from demo.corpus.items import Draw, Item
from demo.corpus.phrasing import ask

CAPITAL = (
    "What is the capital of {k}?", "What's the capital of {k}?", "Capital of {k}?", "Name the capital of {k}.", "Tell me the capital of {k}.",
    "Which city is the capital of {k}?", "What is {k}'s capital?", "The capital of {k}?", "What city is the capital of {k}?",
    "Do you know the capital of {k}?", "What is the capital city of {k}?", "Can you tell me the capital of {k}?", "What is the name of the capital of {k}?",
    "I forgot the capital of {k}. What is it?", "Give me the capital of {k}.", "Could you name the capital of {k}?", "Say, what is the capital of {k}?",
    "Please tell me the capital of {k}.",
    "Do you know what the capital of {k} is?",
    "Tell me what the capital of {k} is.",
)  # fmt: skip
COUNTRY = (
    "Which country has the capital {v}?", "{v} is the capital of which country?", "What country is {v} the capital of?",
    "Of which country is {v} the capital?", "Which country's capital is {v}?", "What country has {v} as its capital?",
    "Name the country whose capital is {v}.", "Which country has {v} as its capital?", "{v} is the capital of what country?",
    "Tell me which country has the capital {v}.",
    "Do you know which country {v} is the capital of?",
)  # fmt: skip


def facts(draw: Draw) -> Item:
    roll = draw.rng.random()
    if roll < 0.4:
        country, city = draw.rng.choice(CAPITALS)
        return ask(draw, "facts", draw.template(CAPITAL).format(k=country), f"The capital of {country} is {city}.")
    if roll < 0.5:
        country, city = draw.rng.choice(CAPITALS)
        return ask(draw, "facts", draw.template(COUNTRY).format(v=city), f"{city} is the capital of {country}.")
    return _from_table(draw, draw.rng.choices(TABLES, weights=[len(table.rows) for table in TABLES])[0])


def _from_table(draw: Draw, table: Table) -> Item:
    key, value = draw.rng.choice(table.rows)
    questions = (*table.questions, f"Please tell me: {table.questions[0]}", f"I want to know: {table.questions[0]}")
    return ask(
        draw,
        "facts",
        draw.template(questions).format(k=key),
        table.answer.format(k=key, K=key.capitalize(), v=value),
    )
