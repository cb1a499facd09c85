"""Checks that the schemas of tool arguments are well-formed, in time bounded by their size."""

from collections.abc import Mapping
from typing import Any

import msgspec

from protocol.errors import ProtocolError

MAX_SCHEMA_BYTES = 128 * 1024
MAX_DEPTH = 64
_TYPES = frozenset(("object", "array", "string", "number", "integer", "boolean", "null"))
_SCHEMAS_BY_NAME = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_SCHEMAS = ("anyOf", "oneOf", "allOf", "prefixItems")
_SCHEMA = ("additionalProperties", "not", "contains", "propertyNames", "if", "then", "else")


def check_tool_schema(schema: Mapping[str, Any], param: str) -> None:
    """Raises ProtocolError naming the place. Interpreting the keywords is left to the reader of the schema."""
    num_bytes = len(msgspec.json.encode(schema))
    if num_bytes > MAX_SCHEMA_BYTES:
        raise _refused(param, f"{num_bytes} bytes of schema, at most {MAX_SCHEMA_BYTES} are taken")
    if schema and schema.get("type", "object") != "object":
        raise _refused(f"{param}.type", 'must be "object": arguments are given by name')
    _check(schema, param, depth=0)


def _check(schema: Any, place: str, *, depth: int) -> None:
    if isinstance(schema, bool):
        return
    if not isinstance(schema, Mapping):
        raise _refused(place, "must be a schema: an object, true or false")
    if depth > MAX_DEPTH:
        raise _refused(place, f"nested more than {MAX_DEPTH} deep")
    for name, value in schema.items():
        inner = f"{place}.{name}"
        if name in _SCHEMAS_BY_NAME:
            if not isinstance(value, Mapping):
                raise _refused(inner, "must be an object of schemas")
            for key, each in value.items():
                _check(each, f"{inner}.{key}", depth=depth + 1)
        elif name in _SCHEMAS or (name == "items" and isinstance(value, list)):
            if not isinstance(value, list) or not value:
                raise _refused(inner, "must be a list of schemas")
            for i, each in enumerate(value):
                _check(each, f"{inner}[{i}]", depth=depth + 1)
        elif name in _SCHEMA or name == "items":
            _check(value, inner, depth=depth + 1)
        else:
            _check_plain(name, value, inner)


def _check_plain(name: str, value: Any, place: str) -> None:
    if name == "type":
        types = value if isinstance(value, list) and value else [value]
        if not all(isinstance(each, str) and each in _TYPES for each in types):
            raise _refused(place, f"must be of {', '.join(sorted(_TYPES))}")
    elif name == "required" and not (isinstance(value, list) and all(isinstance(each, str) for each in value)):
        raise _refused(place, "must be a list of names")
    elif name == "enum" and not isinstance(value, list):
        raise _refused(place, "must be a list of values")
    elif name in ("$ref", "pattern", "description", "title") and not isinstance(value, str):
        raise _refused(place, "must be a string")


def _refused(place: str, why: str) -> ProtocolError:
    place = place if len(place) <= 300 else f"{place[:300]}..."
    return ProtocolError(f"{place}: {why}", param=place, code="invalid_function_parameters")
