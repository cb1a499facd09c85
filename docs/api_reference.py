"""Writes `docs/api.md` from a real gateway's OpenAPI document: `make docs`."""

import asyncio
import json
import tempfile
from pathlib import Path
from typing import Any

from gateway.app import create_app
from gateway.resources import open_services
from gateway.settings import load_settings
from migrations.run import migrate

TARGET = Path(__file__).parent / "api.md"
Json = dict[str, Any]

HEAD = """# API reference

Generated from the gateway's OpenAPI document (`make docs`; the running gateway serves it at `/openapi.json` and, to
read in a browser with access to the Internet, at `/docs`). All paths take `Authorization: Bearer KEY`, these two, the
probes and `/dashboard` excepted. Errors have OpenAI's shape:

    {"error": {"message": "...", "type": "...", "param": "the field at fault or null", "code": "..."}}

Objects that can be edited have a `version`. Send it with a PATCH or PUT, and the edit is refused with 409 and
`code: "stale_version"` where somebody else has changed the object since you read it; without it the last edit holds.
The same for HTTP clients: a GET of one object, and the answer to its edit, has the version as `ETag`; a PATCH, PUT or
DELETE with another one as `If-Match` is refused with 412 and the same code.

Paths that OpenAI has and tiergate does not answer 404 with `code: "unsupported_endpoint"`.
"""


def main() -> None:
    TARGET.write_text(render(asyncio.run(read_document())))


async def read_document() -> Json:
    """From a gateway on an empty database; it needs no other service to say what it serves."""
    with tempfile.TemporaryDirectory() as folder:
        settings = load_settings(
            data_dir=Path(folder), key_pepper="only-for-this-document", redis_url="redis://127.0.0.1:9"
        )
        await asyncio.to_thread(migrate, settings.sql_url)
        async with open_services(settings, is_draining=lambda: False) as running:
            return create_app(running.services).openapi()


def render(document: Json) -> str:
    parts = [HEAD]
    for tag, operations in _by_tag(document).items():
        parts.append(f"\n## {tag.capitalize()}\n")
        parts += [_operation(path, method, operation) for path, method, operation in operations]
    parts.append("\n## Types\n")
    schemas = document["components"]["schemas"]
    parts += [_schema(name, schemas[name]) for name in sorted(schemas) if schemas[name].get("properties")]
    return "".join(parts)


def _by_tag(document: Json) -> dict[str, list[tuple[str, str, Json]]]:
    found: dict[str, list[tuple[str, str, Json]]] = {}
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            tag = operation.get("tags", ["other"])[0]
            found.setdefault(tag, []).append((path, method.upper(), operation))
    return found


def _operation(path: str, method: str, operation: Json) -> str:
    lines = [f"\n### `{method} {path}`\n", operation.get("description") or operation.get("summary", "")]
    rows = [_parameter(parameter) for parameter in operation.get("parameters", [])]
    if rows:
        lines += ["", "| parameter | in | type | |", "|---|---|---|---|", *rows]
    body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema")
    if body:
        lines += ["", f"Body: {_type(body)}"]
    lines.append("")
    for status, answer in operation["responses"].items():
        schema = answer.get("content", {}).get("application/json", {}).get("schema")
        shown = f" {_type(schema)}" if schema and status.startswith("2") else ""
        lines.append(f"- `{status}`{shown} {answer.get('description', '')}")
        lines += [f"  - `{name}`: {header['description']}" for name, header in answer.get("headers", {}).items()]
    return "\n".join(lines) + "\n"


def _parameter(parameter: Json) -> str:
    kind = _type(parameter["schema"])
    return f"| `{parameter['name']}` | {parameter['in']} | {kind} | {parameter.get('description', '')} |"


def _schema(name: str, schema: Json) -> str:
    required = set(schema.get("required", []))
    rows = [
        f"| `{field}`{' *' if field in required else ''} | {_type(property_)} | {_one_line(property_)} |"
        for field, property_ in schema["properties"].items()
    ]
    head = _one_line(schema)
    table = "\n".join(["| field (* required) | type | |", "|---|---|---|", *rows])
    return f"\n### {name}\n\n{head}{chr(10) * 2 if head else ''}{table}\n"


def _type(schema: Json) -> str:
    if "$ref" in schema:
        name = schema["$ref"].rsplit("/", 1)[1]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(_type(choice) for choice in schema["anyOf"]))
    if "enum" in schema:
        return " or ".join(f"`{json.dumps(choice)}`" for choice in schema["enum"])
    if "const" in schema:
        return f"`{json.dumps(schema['const'])}`"
    if schema.get("type") == "array":
        return f"list of {_type(schema.get('items', {}))}"
    return f"{schema.get('type', 'any')}{_bounds(schema)}"


def _bounds(schema: Json) -> str:
    names = {
        "minimum": ">=",
        "exclusiveMinimum": ">",
        "maximum": "<=",
        "exclusiveMaximum": "<",
        "maxLength": "length <=",
    }
    found = [f"{sign} {schema[name]}" for name, sign in names.items() if name in schema]
    return f" ({', '.join(found)})" if found else ""


def _one_line(schema: Json) -> str:
    return " ".join(schema.get("description", "").split())


if __name__ == "__main__":
    main()
