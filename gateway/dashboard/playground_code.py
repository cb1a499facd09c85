"""A playground request as code that sends it from elsewhere."""

import json
import pprint
import shlex
from collections.abc import Mapping
from typing import Any, NamedTuple

from gateway.inference.validate import CHAT_PATH

KEY_VARIABLE = "TIERGATE_API_KEY"


class Snippet(NamedTuple):
    name: str
    code: str


def snippets(origin: str, body: Mapping[str, Any]) -> list[Snippet]:
    """origin: the gateway's URL as the visitor reaches it. The snippets take the key from the environment."""
    return [
        Snippet("curl", _curl(origin, body)),
        Snippet("Python", _python(origin, body)),
        Snippet("Node", _node(origin, body)),
    ]


def _curl(origin: str, body: Mapping[str, Any]) -> str:
    # To curl, data that begins with `@` names a file; JSON begins with a brace.
    return "\n".join(
        (
            f"curl {shlex.quote(origin + CHAT_PATH)} \\",
            f'  -H "Authorization: Bearer ${KEY_VARIABLE}" \\',
            "  -H 'Content-Type: application/json' \\",
            f"  -d {shlex.quote(_json(body))}",
        )
    )


def _python(origin: str, body: Mapping[str, Any]) -> str:
    arguments = "".join(f"    {name}={_indented(value)},\n" for name, value in body.items())
    return (
        "import os\n\n"
        "from openai import OpenAI\n\n"
        f'client = OpenAI(base_url={origin + "/v1"!r}, api_key=os.environ["{KEY_VARIABLE}"])\n'
        f"answer = client.chat.completions.create(\n{arguments})\n"
        "print(answer.choices[0].message.content)"
    )


def _node(origin: str, body: Mapping[str, Any]) -> str:
    return (
        'import OpenAI from "openai";\n\n'
        f"const client = new OpenAI({{ baseURL: {_json(origin + '/v1')}, apiKey: process.env.{KEY_VARIABLE} }});\n"
        f"const answer = await client.chat.completions.create({_json(body)});\n"
        "console.log(answer.choices[0].message.content);"
    )


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=2)


def _indented(value: Any) -> str:
    return pprint.pformat(value, width=110, sort_dicts=False).replace("\n", "\n    ")
