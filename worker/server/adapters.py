"""Loads and unloads adapters while serving, with vLLM's request and response formats."""

import asyncio
import re
from functools import partial
from pathlib import Path

import msgspec
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from protocol.artifacts import digest_of
from protocol.checks import decode_body
from protocol.errors import ProtocolError
from worker.lora.adapter import AdapterError
from worker.server.replica import Replica
from worker.server.request_body import read_body

_NAME = re.compile(r"[^\s/]\S{0,199}")


class LoadAdapterRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """vLLM's request body."""

    lora_name: str
    lora_path: str
    load_inplace: bool = False


class UnloadAdapterRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    lora_name: str
    lora_int_id: int | None = None


_LOAD = msgspec.json.Decoder(LoadAdapterRequest)
_UNLOAD = msgspec.json.Decoder(UnloadAdapterRequest)


async def load_adapter(request: Request) -> Response:
    replica: Replica = request.app.state.replica
    body = decode_body(await read_body(request, max_bytes=replica.max_body_bytes), _LOAD)
    if not _NAME.fullmatch(body.lora_name) or body.lora_name == replica.served_name:
        raise ProtocolError(f"{body.lora_name!r} cannot be an adapter's name", param="lora_name")
    if body.lora_name in replica.engine.report().adapters and not body.load_inplace:
        raise ProtocolError(
            f"the adapter {body.lora_name!r} is already loaded; replace it with load_inplace", param="lora_name"
        )
    try:
        load = partial(replica.engine.load_adapter, is_replacing=body.load_inplace)
        await asyncio.to_thread(load, body.lora_name, Path(body.lora_path))
    except AdapterError as error:
        raise ProtocolError(str(error), param="lora_path") from error
    replica.adapter_paths[body.lora_name] = body.lora_path
    return PlainTextResponse(f"Success: LoRA adapter '{body.lora_name}' added successfully.")


async def unload_adapter(request: Request) -> Response:
    """An unknown name is a 404, raised by the engine."""
    replica: Replica = request.app.state.replica
    body = decode_body(await read_body(request, max_bytes=replica.max_body_bytes), _UNLOAD)
    if replica.fetched is not None and digest_of(body.lora_name) is not None:
        await replica.fetched.forget(body.lora_name)
    else:
        await asyncio.to_thread(replica.engine.unload_adapter, body.lora_name)
    replica.adapter_paths.pop(body.lora_name, None)
    return PlainTextResponse(f"Success: LoRA adapter '{body.lora_name}' removed successfully.")
