"""200 schemas as applications write them: families of shapes, filled by a fixed seed with the words of ten trades."""

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

Schema = dict[str, Any]
NUM_SCHEMAS = 200
_WRITTEN = Path(__file__).with_name("schemas.json")
_WORDS = [
    "name",
    "email",
    "city",
    "street",
    "amount",
    "status",
    "owner",
    "label",
    "kind",
    "note",
    "score",
    "weight",
    "height",
    "phone",
    "country",
    "currency",
    "size",
    "colour",
    "title",
    "author",
    "pages",
    "genre",
    "speed",
    "limit",
    "total",
    "vendor",
    "unit",
    "price",
    "stock",
    "rating",
    "region",
    "team",
    "größe",
    "ciudad",
    "名前",
]
_FORMATS = ("date", "time", "date-time", "email", "uuid", "ipv4", "ipv6", "hostname", "uri", "duration")
_PATTERNS = (
    r"^[A-Z]{2}[0-9]{4}$",
    r"^\+?[0-9]{6,12}$",
    r"^(red|green|blue)-[a-z]{1,8}$",
    r"^[a-z]+(_[a-z]+){0,3}$",
    r"^#[0-9a-fA-F]{6}$",
    r"^v[0-9]{1,2}\.[0-9]{1,2}\.[0-9]{1,3}$",
    r"^[^\s,;]{1,10}$",
    r"^\d{1,3}%$",
)


def all_schemas() -> list[Schema]:
    """Those written by hand first."""
    schemas: list[Schema] = json.loads(_WRITTEN.read_text())
    made = _made(random.Random(16))
    while len(schemas) < NUM_SCHEMAS:
        schema = next(made)
        if schema not in schemas:
            schemas.append(schema)
    return schemas


def _made(rng: random.Random) -> Iterator[Schema]:
    families: list[Callable[[random.Random], Schema]] = [
        _record,
        _nested,
        _list,
        _nullable,
        _referenced,
        _recursive,
        _discriminated,
        _map,
        _tuple,
        _combined,
    ]
    while True:
        for family in families:
            yield family(rng)


def _names(rng: random.Random, num: int) -> list[str]:
    return rng.sample(_WORDS, num)


def _text(rng: random.Random) -> Schema:
    kind = rng.randrange(5)
    if kind == 0:
        return {"type": "string", "format": rng.choice(_FORMATS)}
    if kind == 1:
        return {"type": "string", "pattern": rng.choice(_PATTERNS)}
    if kind == 2:
        return {"type": "string", "enum": _names(rng, rng.randint(1, 6))}
    least = rng.randint(0, 4)
    return {"type": "string", "minLength": least, "maxLength": least + rng.randint(0, 12)}


def _number(rng: random.Random) -> Schema:
    kind = rng.randrange(5)
    low = rng.randint(-1000, 1000)
    if kind == 0:
        return {"type": "integer", "minimum": low, "maximum": low + rng.randint(0, 500)}
    if kind == 1:
        return {"type": "number", "minimum": low / 4, "exclusiveMaximum": low / 4 + rng.randint(1, 100)}
    if kind == 2:
        return {"type": "integer", "multipleOf": rng.choice([2, 5, 10, 25]), "minimum": 0, "maximum": 1000}
    if kind == 3:
        return {"type": "number", "exclusiveMinimum": 0, "maximum": rng.choice([1, 1.5, 99.99])}
    return {"enum": [low, low + 1, low + 7]}


def _leaf(rng: random.Random) -> Schema:
    return rng.choice([_text, _text, _number, lambda _: {"type": "boolean"}, lambda _: {"const": "fixed"}])(rng)


def _object(rng: random.Random, properties: Schema, *, is_open: bool = False) -> Schema:
    names = list(properties)
    required = names if rng.random() < 0.6 else rng.sample(names, rng.randint(0, len(names)))
    schema: Schema = {"type": "object", "properties": properties, "required": required}
    if rng.random() < 0.5:
        schema |= {"title": "A record", "description": "As an application says it.", "$comment": "no rule"}
    return schema if is_open else schema | {"additionalProperties": False}


def _record(rng: random.Random) -> Schema:
    return _object(rng, {name: _leaf(rng) for name in _names(rng, rng.randint(1, 6))})


def _nested(rng: random.Random, depth: int = 3) -> Schema:
    properties = {name: _leaf(rng) for name in _names(rng, 2)}
    if depth:
        properties["inner"] = _nested(rng, depth - 1)
    return _object(rng, properties)


def _list(rng: random.Random) -> Schema:
    least = rng.randint(0, 2)
    items = rng.choice([_leaf, _record])(rng)
    found = {"type": "array", "items": items, "minItems": least, "maxItems": least + rng.randint(0, 3)}
    return found if rng.random() < 0.3 else _object(rng, {"entries": found, "count": _number(rng)})


def _nullable(rng: random.Random) -> Schema:
    first, second, third = _names(rng, 3)
    properties = {
        first: {"anyOf": [_leaf(rng), {"type": "null"}], "default": None},
        second: {"type": ["string", "null"], "maxLength": 9},
        third: {"anyOf": [_record(rng), _number(rng)]},
    }
    return _object(rng, properties)


def _referenced(rng: random.Random) -> Schema:
    inner, outer = {"$ref": "#/$defs/Inner"}, {"$ref": "#/$defs/Outer"}
    definitions = {
        "Inner": _record(rng),
        "Outer": _object(rng, {"inner": inner, "others": {"type": "array", "items": inner, "maxItems": 2}}),
    }
    return {"$defs": definitions, **_object(rng, {"first": outer, "last": inner})}


def _recursive(rng: random.Random) -> Schema:
    node = _object(
        rng, {"value": _leaf(rng), "next": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/Node"}]}, "kind": _leaf(rng)}
    )
    return {"$defs": {"Node": node}, "$ref": "#/$defs/Node"}


def _discriminated(rng: random.Random) -> Schema:
    kinds = _names(rng, 3)
    options = []
    for kind in kinds:
        option = _record(rng)
        option["properties"]["type"] = {"const": kind}
        option["required"] = [*option["required"], "type"]
        options.append(option)
    union: Schema = {"oneOf": options, "discriminator": {"propertyName": "type"}}
    return union if rng.random() < 0.5 else _object(rng, {"event": union})


def _map(rng: random.Random) -> Schema:
    if rng.random() < 0.5:
        return {"type": "object", "patternProperties": {"^[a-z]{1,4}$": _leaf(rng)}, "additionalProperties": False}
    return {
        "type": "object",
        "properties": {"id": _number(rng)},
        "required": ["id"],
        "additionalProperties": _leaf(rng),
    }


def _tuple(rng: random.Random) -> Schema:
    first = [_leaf(rng) for _ in range(rng.randint(1, 4))]
    return {"type": "array", "prefixItems": first, "items": False, "minItems": rng.randint(0, len(first))}


def _combined(rng: random.Random) -> Schema:
    first, second = _names(rng, 2)
    return {
        "allOf": [
            {"type": "object", "properties": {first: {"type": "integer", "minimum": 3}}, "required": [first]},
            {"properties": {first: {"maximum": 30}, second: _leaf(rng)}, "required": [second]},
        ]
    }
