"""Schemas that no finite value satisfies, such as an object that requires another one of its own kind."""

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from worker.guided.errors import BadGrammar
from worker.guided.references import target

_CONTAINERS = {"object", "array"}


def check_ends(root: dict[str, Any], parts: list[tuple[str, dict[str, Any]]]) -> None:
    """parts: all schemas in root, each with its place, outer ones first. Raises BadGrammar if every value of root would
    have to go on without end.

    A schema ends if parts that end can satisfy it; `ending` becomes the least set with that property.
    """
    users: defaultdict[int, list[dict[str, Any]]] = defaultdict(list)
    for _, part in parts:
        for used in _used_by(part, root):
            users[id(used)].append(part)
    ending: set[int] = set()
    waiting = [part for _, part in parts]
    while waiting:
        part = waiting.pop()
        if id(part) not in ending and _ends_by(part, root, ending):
            ending.add(id(part))
            waiting += users[id(part)]
    if id(root) not in ending:
        place = next(place for place, part in parts if id(part) not in ending)
        raise BadGrammar(f"{place}: a value would have to go on without end", code="invalid_schema")


def _used_by(schema: dict[str, Any], root: dict[str, Any]) -> Iterator[Any]:
    """The subschemas that `_ends_by` looks at."""
    yield target(schema.get("$ref"), root)
    yield schema.get("items")
    for keyword in ("anyOf", "oneOf", "allOf", "prefixItems"):
        parts = schema.get(keyword)
        yield from parts if isinstance(parts, list) else ()
    properties = schema.get("properties")
    yield from properties.values() if isinstance(properties, dict) else ()


def _ends_by(schema: dict[str, Any], root: dict[str, Any], ending: set[int]) -> bool:
    if "$ref" in schema:
        found = target(schema["$ref"], root)
        # References that lead elsewhere are left to the engine, which knows or refuses them.
        if isinstance(found, dict) and id(found) not in ending:
            return False
    for keyword in ("anyOf", "oneOf"):
        options = schema.get(keyword)
        if isinstance(options, list) and not any(_is_ending(option, ending) for option in options):
            return False
    options = schema.get("allOf")
    if isinstance(options, list) and not all(_is_ending(option, ending) for option in options):
        return False
    return "enum" in schema or "const" in schema or _has_ending_value(schema, ending)


def _has_ending_value(schema: dict[str, Any], ending: set[int]) -> bool:
    types = schema.get("type")
    named = (
        {types}
        if isinstance(types, str)
        else {t for t in types if isinstance(t, str)}
        if isinstance(types, list)
        else set()
    )
    if not named or named - _CONTAINERS:
        return True
    properties, required = schema.get("properties"), schema.get("required")
    if "object" in named:
        known = properties if isinstance(properties, dict) else {}
        wanted = required if isinstance(required, list) else []
        if all(_is_ending(known.get(name, True), ending) for name in wanted if isinstance(name, str)):
            return True
    if "array" in named:
        num_least, first = schema.get("minItems"), schema.get("prefixItems")
        needed = [*(first if isinstance(first, list) else []), schema.get("items", True)]
        if not isinstance(num_least, int) or all(_is_ending(each, ending) for each in needed[:num_least]):
            return True
    return False


def _is_ending(schema: Any, ending: set[int]) -> bool:
    return schema is not False and (not isinstance(schema, dict) or id(schema) in ending)
