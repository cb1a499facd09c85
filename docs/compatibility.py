"""Writes `docs/compatibility.md` from the types of the installed `openai` package and ours: `make docs`."""

import inspect
import types
import typing
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, NotRequired, Required, Union, get_args, get_origin

import msgspec
import openai
from openai.types import (
    batch_create_params,
    batch_list_params,
    completion_create_params,
    embedding_create_params,
    file_create_params,
    file_list_params,
)
from openai.types.chat import completion_create_params as chat_create_params
from openai.types.responses import input_item_list_params, response_create_params, response_retrieve_params
from pydantic import BaseModel
from typing_extensions import is_typeddict

from gateway.inference import files
from gateway.inference.batches import routes as batches
from gateway.inference.responses import routes as responses
from protocol.answer_format import JsonSchemaFormat, ResponseFormat
from protocol.embeddings import EmbeddingsRequest
from protocol.openai_fields import COMPLETIONS, FieldTable
from protocol.requests import ChatCompletionRequest, CompletionRequest
from protocol.responses_api import InputItems, ResponsesRequest
from protocol.responses_fields import RESPONSES
from protocol.stored_fields import STORED


@dataclass(frozen=True)
class Endpoint:
    theirs: Any
    ours: frozenset[str]
    table: FieldTable = COMPLETIONS


TARGET = Path(__file__).parent / "compatibility.md"
_TAGS = ("type", "role")

HEAD = """# Compatibility with OpenAI's API

Generated (`make docs`) from the types of the package `openai` {version} and from those that requests are checked by.
Each field is supported, or accepted without any effect (a *no-op*), or refused by name: none is ignored in silence. A
field that stands in neither API is refused as unknown, and so is a parameter of a query of files, batches and kept
responses. `null` is taken for a field that is absent. `field=value` is one value of a field.

What OpenAI's API has beside these endpoints and tiergate does not answers 404 with `code: "unsupported_endpoint"`.

The official clients for Python and Node, LangChain's chat and agent classes and LiteLLM's client are asked the same by
`tests/e2e/clients`: chats, responses, tools, and (but for LangChain, which has none) files and batches. They map errors
to their own classes: a prompt over the window is `context_length_exceeded`, LangChain's `ContextOverflowError` and
LiteLLM's `ContextWindowExceededError`.

`service_tier`: `flex` puts a request into the last class, beside batches; where a pool is saturated it gets a 503. It
costs the tier's price, unlike at OpenAI: what is to cost less is sent as a batch, whose usage events name it, so that
an invoice can show why. `priority` is what tiers of the first class have in any case, and is refused to others. Answers
of our own workers tell what was used.

Beyond OpenAI's fields, those that vLLM made customary are taken (`docs/sampling.md`, `docs/structured-output.md`), and
`server_tools` (`docs/server-tools.md`).
"""


class Undecided(Exception):
    """A field of OpenAI's of which nobody has said what becomes of it."""


def main() -> None:
    TARGET.write_text(render())


def render() -> str:
    """Raises Undecided."""
    parts = [HEAD.format(version=openai.__version__)]
    for name in ENDPOINTS:
        rows = []
        for field, standing in standings(name).items():
            if standing is None:
                raise Undecided(f"{name}: {field}")
            rows.append(row(field, standing))
        parts.append("\n".join([f"\n## `{name}`\n", "| field | |", "|---|---|", *rows, ""]))
    return "".join(parts)


def row(field: str, standing: str) -> str:
    return f"| `{field}` | {standing} |"


def standings(name: str) -> dict[str, str | None]:
    """What becomes of each of OpenAI's fields; None where that is undecided."""
    endpoint = ENDPOINTS[name]
    return {field: _standing(field, endpoint) for field in _shown(endpoint)}


def _standing(field: str, endpoint: Endpoint) -> str | None:
    table = endpoint.table
    if (reason := table.refused.get(field)) is not None:
        return f"refused: {reason}"
    if (note := table.no_ops.get(field)) is not None:
        return f"no-op: {note}" if note else "no-op"
    if (only := table.partly.get(field)) is not None:
        return f"in part: {only}"
    if field not in endpoint.ours:
        return None
    return f"supported: {table.notes[field]}" if field in table.notes else "supported"


def _shown(endpoint: Endpoint) -> list[str]:
    """In order, without what is below one that is refused or has no effect."""
    table = endpoint.table
    above = tuple(f"{path}." for path in (*table.refused, *table.no_ops))
    paths = dict.fromkeys(_typed_dict_paths(endpoint.theirs, "", table))
    return [path for path in paths if not path.startswith(above)]


def _typed_dict_paths(kind: Any, path: str, table: FieldTable) -> Iterator[str]:
    """Of all fields, with one path for each value of a tag that is refused."""
    for each in _typed_dicts(kind):
        hints = typing.get_type_hints(each, include_extras=True)
        tags = [f"{path}{name}={value}" for name in _TAGS if name in hints for value in _literals(hints[name])]
        if refused := [tag for tag in tags if tag in table.refused]:
            yield from refused
            continue
        for name, hint in sorted(hints.items()):
            yield path + name
            yield from _typed_dict_paths(hint, f"{path}{name}.", table)


def _typed_dicts(kind: Any) -> Iterator[Any]:
    """Those that a value of this type may be, or hold as elements of a list."""
    if is_typeddict(kind):
        yield kind
    elif get_origin(kind) in (Union, types.UnionType, Required, NotRequired, Annotated) or _is_list(kind):
        for argument in get_args(kind):
            yield from _typed_dicts(argument)


def _is_list(kind: Any) -> bool:
    return get_origin(kind) is not None and get_origin(kind) is not dict and get_origin(kind) is not Literal


def _literals(kind: Any) -> tuple[Any, ...]:
    if get_origin(kind) is Literal:
        return get_args(kind)
    return tuple(value for argument in get_args(kind) for value in _literals(argument))


def _struct_paths(kind: Any, path: str = "", above: frozenset[type] = frozenset()) -> Iterator[str]:
    for struct in _structs(kind):
        if struct in above:
            continue
        config = struct.__struct_config__
        if config.tag_field is not None:
            yield path + config.tag_field
        hints = typing.get_type_hints(struct, include_extras=True)
        for field in msgspec.structs.fields(struct):
            yield path + field.encode_name
            yield from _struct_paths(hints[field.name], f"{path}{field.encode_name}.", above | {struct})


def _structs(kind: Any) -> Iterator[type[msgspec.Struct]]:
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        yield kind
    for argument in get_args(kind):
        yield from _structs(argument)


def _model_paths(model: type[BaseModel], path: str = "") -> Iterator[str]:
    for name, field in model.model_fields.items():
        yield path + name
        for argument in (field.annotation, *get_args(field.annotation)):
            if isinstance(argument, type) and issubclass(argument, BaseModel):
                yield from _model_paths(argument, f"{path}{name}.")


def _asked(*kinds: Any) -> frozenset[str]:
    """Fields of the types that bodies are decoded into; (prefix, type) for a part that is decoded apart."""
    parts = [kind if isinstance(kind, tuple) else ("", kind) for kind in kinds]
    return frozenset(path for prefix, kind in parts for path in _struct_paths(kind, prefix))


def _listed(route: Callable[..., object]) -> frozenset[str]:
    """Of a query."""
    return frozenset(inspect.signature(route).parameters)


def _form_paths(names: typing.Iterable[str]) -> frozenset[str]:
    paths = [name.replace("[", ".").replace("]", "") for name in names]
    return frozenset([*paths, *(path.partition(".")[0] for path in paths)])


ENDPOINTS = {
    "/v1/chat/completions": Endpoint(chat_create_params.CompletionCreateParamsStreaming, _asked(ChatCompletionRequest)),
    "/v1/completions": Endpoint(completion_create_params.CompletionCreateParamsStreaming, _asked(CompletionRequest)),
    "/v1/embeddings": Endpoint(embedding_create_params.EmbeddingCreateParams, _asked(EmbeddingsRequest)),
    "/v1/responses": Endpoint(
        response_create_params.ResponseCreateParamsStreaming,
        _asked(ResponsesRequest, InputItems, ("text.format.", ResponseFormat), ("text.format.", JsonSchemaFormat)),
        RESPONSES,
    ),
    "GET /v1/responses/{id}": Endpoint(
        response_retrieve_params.ResponseRetrieveParamsStreaming, _listed(responses.show_response), STORED
    ),
    "GET /v1/responses/{id}/input_items": Endpoint(
        input_item_list_params.InputItemListParams, _listed(responses.list_input_items), STORED
    ),
    "/v1/files": Endpoint(file_create_params.FileCreateParams, _form_paths(files.FORM_FIELDS), STORED),
    "GET /v1/files": Endpoint(file_list_params.FileListParams, _listed(files.list_files), STORED),
    "/v1/batches": Endpoint(batch_create_params.BatchCreateParams, frozenset(_model_paths(batches.BatchDraft)), STORED),
    "GET /v1/batches": Endpoint(batch_list_params.BatchListParams, _listed(batches.list_batches), STORED),
}

if __name__ == "__main__":
    main()
