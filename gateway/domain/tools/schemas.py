"""JSON schemas of tools' arguments: which may be registered, and whether arguments satisfy them.

A tenant may have written the schema, so it must not cost more than its size suggests: patterns are matched in linear
time, nothing is fetched, and references count as what they stand for.
"""

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import jsonschema_rs

from gateway.http.errors import InvalidRequest

MAX_SCHEMA_BYTES = 16 * 1024
MAX_NODES = 5_000
"""Limit for a schema with its references replaced by what they stand for."""
MAX_DEPTH = 64
_MAX_WORDS = 300
_REFUSED = ("$id", "$anchor", "$dynamicRef", "$dynamicAnchor", "$recursiveRef", "$recursiveAnchor")
_PATTERNS = jsonschema_rs.RegexOptions()


def check_schema(schema: Mapping[str, Any], *, param: str) -> None:
    """Raises InvalidRequest, naming the place in the schema."""
    if schema.get("type") != "object":
        raise InvalidRequest(f'{param}: must be the schema of an object: {{"type": "object", ...}}', param=param)
    try:
        text = json.dumps(schema, ensure_ascii=False)
        # No database accepts unpaired surrogates, and PostgreSQL does not accept U+0000.
        if "\\u0000" in text or len(text.encode()) > MAX_SCHEMA_BYTES:
            raise InvalidRequest(f"{param}: at most {MAX_SCHEMA_BYTES} bytes of JSON, without U+0000", param=param)
        _Size(schema, param).check()
        _validator(text)
    except RecursionError:
        raise InvalidRequest(f"{param}: nested too deeply", param=param) from None
    except ValueError as error:
        raise InvalidRequest(f"{param}: no valid JSON schema: {_words(error)}", param=param) from error


def problem_with(arguments: Any, schema: Mapping[str, Any]) -> str | None:
    """Why the arguments violate a schema that `check_schema` accepted, in words for a model; None: they satisfy it."""
    for error in _validator(json.dumps(schema)).iter_errors(arguments):
        place = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in error.instance_path)
        return f"arguments{place}: {_words(error)}"
    return None


@lru_cache(maxsize=512)
def _validator(schema: str) -> Any:
    return jsonschema_rs.validator_for(json.loads(schema), offline=True, pattern_options=_PATTERNS)


class _Size:
    """Counts the nodes of a schema with its references replaced."""

    def __init__(self, root: Mapping[str, Any], param: str) -> None:
        self._root = root
        self._param = param
        self._of_references: dict[str, int | None] = {}
        """Nodes by reference; None: still being counted."""

    def check(self) -> None:
        if self._count(self._root, self._param, depth=0) > MAX_NODES:
            raise self._refused(self._param, f"it has more than {MAX_NODES} parts, references replaced")

    def _count(self, node: Any, place: str, *, depth: int) -> int:
        if depth > MAX_DEPTH:
            raise self._refused(place, f"nested more than {MAX_DEPTH} deep")
        if isinstance(node, list):
            return 1 + sum(self._count(each, f"{place}[{i}]", depth=depth + 1) for i, each in enumerate(node))
        if not isinstance(node, Mapping):
            return 1
        num_nodes = 1
        for name, value in node.items():
            inner = f"{place}.{name}"
            if name in _REFUSED and isinstance(value, str):
                raise self._refused(inner, "is not supported; write `$ref` to a place in `$defs`")
            if name.startswith("unevaluated") and isinstance(value, bool | Mapping):
                raise self._refused(inner, "is not supported; use additionalProperties or items")
            if name == "$ref" and isinstance(value, str):
                num_nodes += self._count_reference(value, inner, depth=depth)
            elif name not in ("$defs", "definitions"):
                num_nodes += self._count(value, inner, depth=depth + 1)
        return num_nodes

    def _count_reference(self, reference: str, place: str, *, depth: int) -> int:
        if reference in self._of_references:
            known = self._of_references[reference]
            if known is None:
                raise self._refused(place, f"{reference!r} refers to itself without end")
            return known
        self._of_references[reference] = None
        found = self._count(self._target(reference, place), place, depth=depth + 1)
        self._of_references[reference] = found
        return found

    def _target(self, reference: str, place: str) -> Any:
        node: Any = self._root
        if not reference.startswith("#/"):
            raise self._refused(place, "refer to a place in this schema, such as #/$defs/name")
        for part in reference[2:].split("/"):
            key = part.replace("~1", "/").replace("~0", "~")
            if not isinstance(node, Mapping) or key not in node:
                raise self._refused(place, f"there is no {reference!r}")
            node = node[key]
        return node

    def _refused(self, place: str, why: str) -> InvalidRequest:
        return InvalidRequest(f"{place[:_MAX_WORDS]}: {why[:_MAX_WORDS]}", param=self._param)


def _words(error: Exception) -> str:
    return str(getattr(error, "message", error)).partition("\n")[0][:_MAX_WORDS]
