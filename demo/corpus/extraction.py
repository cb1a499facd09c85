"""Extracting names, dates and prices from a sentence as JSON, and filling a given JSON schema."""
# ruff: noqa: E501  (lists of phrases read better with many to a line)

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from demo.corpus.items import Draw, Item
from demo.corpus.names import CITIES, COLORS, MONTHS, THINGS, draw_name
from demo.corpus.phrasing import ask

SALES = (
    "On {day} {month}, {name} bought a {thing} for ${price}.", "{name} paid ${price} for a {thing} on {day} {month}.",
    "{name} sold a {thing} on {day} {month} for ${price}.", "A {thing} was sold to {name} for ${price} on {day} {month}.",
    "The {thing} that {name} ordered on {day} {month} costs ${price}.", "{name} got a {thing} on {day} {month}. It cost ${price}.",
    "Order of {day} {month}: {name}, one {thing}, ${price}.", "For ${price}, {name} found a {thing} on {day} {month}.",
    "We shipped a {thing} to {name} on {day} {month} for ${price}.", "On {day} {month} a {thing} went to {name} for ${price}.",
    "{name} spent ${price} on a {thing} on {day} {month}.", "{day} {month}: {name} bought one {thing} at ${price}.",
    "{name} ordered a {thing} on {day} {month} for ${price}.",
    "On {day} {month}, {name} sold a {thing} for ${price}.",
)  # fmt: skip
EXTRACT = (
    "Extract {fields} as JSON: {text}", "Extract {fields} from this text as JSON: {text}", "Give me {fields} as JSON. {text}",
    "{text} Extract {fields} as JSON.", "Return {fields} in JSON: {text}", "Read this and answer in JSON with {fields}: {text}",
    "Find {fields} and write them as JSON. {text}", "From the text, extract {fields} into JSON. Text: {text}", "JSON with {fields}: {text}",
    "{text} Return {fields} as JSON.", "Turn this into JSON with {fields}: {text}", "Text: {text} Extract {fields} as JSON.",
    "Read the text and return {fields} as JSON: {text}",
    "Give me {fields} from this text as JSON: {text}",
)  # fmt: skip
FILL = (
    "Fill this JSON schema from the text.\nSchema: {schema}\nText: {text}", "Text: {text}\nAnswer with JSON that matches this schema: {schema}",
    "Answer in JSON by this schema: {schema}\n{text}", "{text}\nReturn JSON for the schema {schema}", "Schema: {schema}\nText: {text}",
    "Extract the data from the text. Use this JSON schema: {schema}\nText: {text}", "Use the schema {schema} for this text: {text}",
    "Give JSON that follows this schema.\n{schema}\n{text}", "Write JSON matching {schema} from: {text}", "JSON schema: {schema}\nFrom the text: {text}",
    "Follow the schema {schema} and extract: {text}", "Text: {text}\nSchema: {schema}",
    "Return JSON for this schema: {schema}\nText: {text}",
    "Use this JSON schema: {schema}\nText: {text}",
)  # fmt: skip


def _sale(draw: Draw) -> tuple[str, dict[str, Any]]:
    """A sentence about a sale, and the facts in it. Both names and sentence forms are held out."""
    rng = draw.rng
    facts = {"name": draw_name(draw), "item": rng.choice(THINGS), "price": rng.randint(2, 99)}
    day, month = rng.randint(1, 28), rng.choice(MONTHS)
    text = draw.template(SALES).format(
        day=day, month=month, name=facts["name"], thing=facts["item"], price=facts["price"]
    )
    return text, {**facts, "date": f"{day} {month}"}


def extraction(draw: Draw) -> Item:
    text, facts = _sale(draw)
    fields = draw.rng.sample(("name", "date", "price", "item"), draw.rng.choice((1, 2, 3, 3)))
    wanted = "the " + (" and ".join((", ".join(fields[:-1]), fields[-1])) if len(fields) > 1 else fields[0])
    answer = json.dumps({name: facts[name] for name in fields})
    return ask(draw, "extraction", draw.template(EXTRACT).format(fields=wanted, text=text), answer, is_casual=False)


@dataclass(frozen=True)
class Field:
    """A schema property: its possible names, its JSON type, and a maker of a value with the clause that states it."""

    names: tuple[str, ...]
    type: str
    make: Callable[[Draw], tuple[Any, str]]


def _clause(value: Any, clause: str) -> tuple[Any, str]:
    return value, clause.format(v=value)


FIELDS = (
    Field(("city", "town", "location", "place"), "string", lambda d: _clause(d.entity(CITIES), d.rng.choice(("lives in {v}", "is from {v}", "works in {v}")))),
    Field(("age", "years", "age_years"), "integer", lambda d: _clause(d.rng.randint(18, 90), "is {v} years old")),
    Field(("email", "mail", "contact"), "string", lambda d: _clause(draw_name(d).lower() + "@" + d.rng.choice(("mail", "post", "web")) + ".com", "can be reached at {v}")),
    Field(("color", "favorite_color"), "string", lambda d: _clause(d.rng.choice(COLORS), d.rng.choice(("likes the color {v}", "prefers {v}")))),
    Field(("budget", "price", "amount"), "number", lambda d: _clause(d.rng.randint(10, 999), d.rng.choice(("can spend ${v}", "has a budget of ${v}")))),
    Field(("product", "item", "thing"), "string", lambda d: _clause(d.rng.choice(THINGS), d.rng.choice(("wants a {v}", "is looking for a {v}")))),
    Field(("quantity", "count", "units"), "integer", lambda d: _clause(d.rng.randint(2, 20), d.rng.choice(("needs {v} of them", "orders {v} pieces")))),
    Field(("date", "due", "day"), "string", lambda d: _clause(f"{d.rng.randint(1, 28)} {d.rng.choice(MONTHS)}", d.rng.choice(("comes on {v}", "needs it by {v}")))),
    Field(("member", "is_member", "subscribed"), "boolean", lambda d: (value := d.chance(0.5), "is a member" if value else "is not a member")),
)  # fmt: skip


def schema(draw: Draw) -> Item:
    """Three to five fields, in another order in the schema than in the text."""
    chosen = draw.rng.sample(FIELDS, draw.rng.choice((2, 3, 3, 4)))
    name_key, name = draw.rng.choice(("name", "customer", "person", "full_name")), draw_name(draw)
    properties: list[tuple[str, str, Any]] = [(name_key, "string", name)]
    clauses = []
    for entry in chosen:
        value, clause = entry.make(draw)
        properties.append((draw.rng.choice(entry.names), entry.type, value))
        clauses.append(clause)
    draw.rng.shuffle(properties)
    text = f"{name} {', '.join(clauses[:-1])} and {clauses[-1]}."
    body = {
        "type": "object",
        "properties": {key: {"type": kind} for key, kind, _ in properties},
        "required": [key for key, _, _ in properties],
    }
    answer = json.dumps({key: value for key, _, value in properties})
    question = draw.template(FILL).format(schema=json.dumps(body), text=text)
    return ask(draw, "schema", question, answer, is_casual=False)
