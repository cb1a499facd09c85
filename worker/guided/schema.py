"""Prepares a client's JSON schema for the grammar engine: refuses what costs too much, tightens what the engine reads
laxly.

The engine itself refuses keywords that it does not know; see docs/structured-output.md.
"""

import json
import re
from collections.abc import Iterator
from typing import Any

from worker.guided.endless import check_ends
from worker.guided.errors import BadGrammar
from worker.guided.formats import PATTERNS
from worker.guided.patterns import check_weight
from worker.guided.references import resolve

MAX_DEPTH = 64
MAX_SCHEMAS = 2_000
"""Schemas within one. More optional properties take seconds to compile, and hold up other threads for tenths of one."""
MAX_NAME_PATTERNS = 16
"""All patternProperties of a schema: each pattern is compared with every other, and with every name."""
MAX_MULTIPLE = 10_000
"""An automaton that recognises multiples of n has n states, which take a few microseconds each."""
MAX_MULTIPLES = 50_000
"""The sum of all multipleOf values in a schema."""
WHITESPACE = " ?"
"""Allowed between JSON's tokens. With more, weak models and high temperatures write little else until max_tokens."""

_SCHEMAS_BY_NAME = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_SCHEMAS = ("items", "additionalProperties", "additionalItems", "not", "if", "then", "else", "contains")
_LISTS = ("prefixItems", "anyOf", "oneOf", "allOf")
_UNKNOWN = re.compile(r"Unimplemented keys: \[(?P<keys>[^\]]*)\]")
_NOT_BLANK = re.compile(r"(?<!\\)((?:\\\\)*)\\S")

Schema = dict[str, Any]


def prepare_schema(text: str, *, whitespace: str | None, is_closed: bool = False) -> Schema:
    """The schema, with the engine's own options in it. Raises BadGrammar, which names the place."""
    try:
        schema = json.loads(text)
    except RecursionError as error:
        raise BadGrammar("the schema is nested too deeply", code="invalid_schema") from error
    except ValueError as error:
        raise BadGrammar(f"the schema is not JSON: {error}", code="invalid_schema") from error
    if schema is False:
        raise BadGrammar("the schema is false, which no value satisfies", code="invalid_schema")
    if schema is True:
        schema = {}
    if not isinstance(schema, dict):
        raise BadGrammar(f"a schema must be a JSON object, got {_brief(schema)}", code="invalid_schema")
    parts = []
    for pointer, part in _walk(schema, "schema"):
        # Before `_walk` looks for the parts of this one.
        _modernize(pointer, part)
        parts.append((pointer, part))
        if len(parts) > MAX_SCHEMAS:
            raise BadGrammar(f"schema: it has more than {MAX_SCHEMAS} schemas within it", code="schema_too_large")
    if sum(len(_mapping(part.get("patternProperties"))) for _, part in parts) > MAX_NAME_PATTERNS:
        raise BadGrammar(f"schema: more than {MAX_NAME_PATTERNS} patternProperties are not supported")
    for pointer, part in parts:
        _check(pointer, part)
        _sharpen(part, schema)
        if is_closed and ("properties" in part or part.get("type") == "object") and "patternProperties" not in part:
            part.setdefault("additionalProperties", False)
    if sum(part.get("multipleOf", 0) for _, part in parts) > MAX_MULTIPLES:
        raise BadGrammar(f"schema: its values of multipleOf together exceed {MAX_MULTIPLES}")
    # Walks again, since parts renamed or added meanwhile have other places.
    check_ends(schema, list(_walk(schema, "schema")))
    # Replaces a client's own options, which could make the engine ignore keywords that it does not know.
    schema["x-guidance"] = {"whitespace_pattern": WHITESPACE if whitespace is None else whitespace}
    return schema


def explain(error: str, schemas: list[Schema]) -> str:
    """The engine's error in plain words, with the place in the schemas of a keyword that it does not know."""
    match = _UNKNOWN.search(error)
    keys = set() if match is None else set(json.loads(f"[{match['keys']}]"))
    for pointer, part in (found for schema in schemas for found in _walk(schema, "schema")):
        unknown = sorted(keys & part.keys())
        if unknown:
            return f"{pointer}: the keyword {unknown[0]!r} is not supported; see docs/structured-output.md"
    if "coerce_one_of" in error:
        return "oneOf is supported only where no value can be of two options; see docs/structured-output.md"
    if "NoExtension" in error:
        return "no text satisfies this"
    return " ".join(error.removesuffix("<non-verbose/>").split())[:500]


def _walk(schema: Schema, place: str, depth: int = 0) -> Iterator[tuple[str, Schema]]:
    """The schema and every schema within it, each with its JSON pointer. Skips values such as those of `enum`."""
    if depth > MAX_DEPTH:
        raise BadGrammar(f"{place} is nested deeper than {MAX_DEPTH} schemas", code="invalid_schema")
    yield place, schema
    for keyword in _SCHEMAS_BY_NAME:
        parts = schema.get(keyword)
        if isinstance(parts, dict):
            for name, part in parts.items():
                yield from _enter(part, f"{place}/{keyword}/{_escape(name)}", depth)
    for keyword in _LISTS:
        parts = schema.get(keyword)
        if isinstance(parts, list):
            for i, part in enumerate(parts):
                yield from _enter(part, f"{place}/{keyword}/{i}", depth)
    for keyword in _SCHEMAS:
        yield from _enter(schema.get(keyword), f"{place}/{keyword}", depth)


def _enter(part: Any, place: str, depth: int) -> Iterator[tuple[str, Schema]]:
    if isinstance(part, dict):
        yield from _walk(part, place, depth + 1)


def _modernize(place: str, schema: Schema) -> None:
    """Rewrites, in place, a list under `items` (up to draft 2019-09) in the newer way; the engine would overlook it."""
    rest = schema.pop("additionalItems", True)
    if isinstance(schema.get("items"), list):
        if "prefixItems" in schema:
            raise BadGrammar(f"{place}/items must be a schema beside prefixItems", code="invalid_schema")
        schema["prefixItems"], schema["items"] = schema["items"], rest


def _check(place: str, schema: Schema) -> None:
    reference = schema.get("$ref")
    if isinstance(reference, str) and "://" in reference and not reference.startswith("http://json-schema.org"):
        raise BadGrammar(f"{place}/$ref: {reference[:200]!r} is elsewhere, and nothing is fetched; put it under $defs")
    named = schema.get("patternProperties")
    for pattern in (schema.get("pattern"), *(named if isinstance(named, dict) else ())):
        if isinstance(pattern, str):
            check_weight(pattern, f"{place}/pattern")
    multiple = schema.get("multipleOf")
    if multiple is not None and not (isinstance(multiple, int | float) and 0 < multiple <= MAX_MULTIPLE):
        raise BadGrammar(f"{place}/multipleOf must be above 0 and at most {MAX_MULTIPLE}, got {multiple}")
    fewest, required = schema.get("minProperties"), schema.get("required")
    num_required = len(required) if isinstance(required, list) else 0
    if isinstance(fewest, int | float) and fewest > max(1, num_required):
        # The engine counts a repeated name again, although every JSON reader takes it for the same property.
        raise BadGrammar(f"{place}/minProperties above 1 is not supported; see docs/structured-output.md")
    for keyword in ("exclusiveMinimum", "exclusiveMaximum"):
        if isinstance(schema.get(keyword), bool):
            # Draft 4's form, which the engine would overlook.
            raise BadGrammar(f"{place}/{keyword} must be a number", code="invalid_schema")


def _sharpen(schema: Schema, root: Schema) -> None:
    """Rewrites, in place, what the engine would refuse, or read more generously than the standard."""
    pattern = schema.get("pattern")
    if isinstance(pattern, str):
        schema["pattern"] = _NOT_BLANK.sub(r"\1[^\\s\\x{FEFF}]", pattern) if "[" not in pattern else pattern
    name = schema.get("format")
    exact = PATTERNS.get(name) if isinstance(name, str) else None
    if exact is not None:
        del schema["format"]
        if "pattern" in schema:
            schema["allOf"] = [*schema.get("allOf", ()), {"type": "string", "pattern": exact}]
        else:
            schema["pattern"] = exact
            schema.setdefault("type", "string")
    options = schema.get("oneOf")
    if isinstance(options, list) and "anyOf" not in schema and set_apart(options, root):
        # No value satisfies two of the options, so oneOf and anyOf are the same.
        schema["anyOf"] = schema.pop("oneOf")
        schema.pop("discriminator", None)


def set_apart(options: list[Any], root: Schema) -> bool:
    """Whether the options can be told apart by their types, or by a property with fixed values.

    Makes that property required, in place: one with a default may be left out, and then no value would tell.
    """
    found = [resolve(option, root) for option in options]
    if any(option is None for option in found):
        return False
    schemas = [option for option in found if option is not None]
    if _all_apart([_types(option) for option in schemas]):
        return True
    if any(option.get("type") != "object" for option in schemas):
        return False
    for name in sorted(_mapping(schemas[0].get("properties"))):
        if _all_apart([_fixed_values(option, name) for option in schemas]):
            for option in schemas:
                required = option.setdefault("required", [])
                if isinstance(required, list) and name not in required:
                    required.append(name)
            return True
    return False


def _all_apart(sets: list[set[str]]) -> bool:
    """Whether no two share a value; an empty set stands for any value."""
    return all(sets) and len(set().union(*sets)) == sum(map(len, sets))


def _types(schema: Schema) -> set[str]:
    types = schema.get("type")
    named = {types} if isinstance(types, str) else {str(each) for each in types} if isinstance(types, list) else set()
    return {"number" if name == "integer" else name for name in named}


def _fixed_values(schema: Schema, name: str) -> set[str]:
    value = _mapping(schema.get("properties")).get(name)
    if not isinstance(value, dict):
        return set()
    values = [value["const"]] if "const" in value else value.get("enum", [])
    # Strings only, since equal numbers may be spelled in two ways.
    return {each for each in values if isinstance(each, str)} if all(isinstance(v, str) for v in values) else set()


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _escape(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")


def _brief(value: object) -> str:
    return json.dumps(value)[:60]
