"""`GET /version` and `/tokenizer_info`, as vLLM has them."""

from importlib.metadata import version as version_of
from pathlib import Path
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from text.folder import FolderError
from worker.server.replica import Replica

_VERSION = version_of("tiergate")
_HIDDEN = ("_file", "_path", "name_or_path")
"""Suffixes of field names that hold file-system paths."""


async def version(request: Request) -> Response:
    return Response(msgspec.json.encode({"version": _VERSION}), media_type="application/json")


async def tokenizer_info(request: Request) -> Response:
    """The checkpoint's tokenizer configuration. Needs the worker's key, like `/tokenizer`, which serves all of it."""
    replica: Replica = request.app.state.replica
    return Response(msgspec.json.encode(replica.tokenizer_info), media_type="application/json")


def read_tokenizer_info(folder: Path) -> dict[str, Any]:
    """tokenizer_config.json with the chat template in use and without file-system paths. Raises FolderError."""
    path, template = folder / "tokenizer_config.json", folder / "chat_template.jinja"
    try:
        said = msgspec.json.decode(path.read_bytes(), type=dict[str, Any]) if path.is_file() else {}
        if template.is_file():
            said["chat_template"] = template.read_text(encoding="utf-8")
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise FolderError(f"{path}: {error}") from error
    shown = {name: value for name, value in said.items() if not name.endswith(_HIDDEN)}
    return {"tokenizer_class": "PreTrainedTokenizerFast"} | shown
