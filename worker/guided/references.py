"""`$ref` inside one schema."""

from typing import Any

_MAX_STEPS = 32


def target(reference: object, root: dict[str, Any]) -> Any:
    """The value that a reference within the document points to; None if it leads elsewhere or nowhere."""
    if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/")):
        return None
    found: Any = root
    for name in reference[2:].split("/") if reference != "#" else ():
        name = name.replace("~1", "/").replace("~0", "~")
        if isinstance(found, list):
            found = found[int(name)] if name.isdecimal() and int(name) < len(found) else None
        else:
            found = found.get(name) if isinstance(found, dict) else None
    return found


def resolve(schema: Any, root: dict[str, Any]) -> dict[str, Any] | None:
    """The schema itself, or the object at the end of its chain of references; None if there is no object."""
    for _ in range(_MAX_STEPS):
        if not isinstance(schema, dict):
            return None
        if "$ref" not in schema:
            return schema
        schema = target(schema["$ref"], root)
    return None
