"""`GET /v1/models`, and loading and unloading adapters while serving."""

import asyncio
import re
from pathlib import Path

import msgspec
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from protocol.checks import decode_body
from protocol.errors import ProtocolError
from protocol.responses import ModelCard, ModelList
from worker.lora.adapter import AdapterError
from worker.server.body import read_body
from worker.server.replica import Replica

_NAME = re.compile(r"[^\s/]\S{0,199}")


class LoadAdapterRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """vLLM's body."""

    lora_name: str
    lora_path: str
    load_inplace: bool = False


class UnloadAdapterRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    lora_name: str
    lora_int_id: int | None = None


_LOAD = msgspec.json.Decoder(LoadAdapterRequest)
_UNLOAD = msgspec.json.Decoder(UnloadAdapterRequest)


def list_models(replica: Replica) -> ModelList:
    """The base model first; an adapter names its base as `parent`, as at vLLM."""
    load = replica.engine.report()
    base = ModelCard(
        id=replica.served_name,
        created=replica.created_at_s,
        max_model_len=load.max_model_len,
        root=replica.served_name,
    )
    adapters = [
        ModelCard(
            id=name,
            created=replica.created_at_s,
            max_model_len=load.max_model_len,
            root=replica.adapter_paths.get(name),
            parent=replica.served_name,
        )
        for name in load.adapters
    ]
    return ModelList(data=[base, *adapters])


async def load_adapter(request: Request) -> Response:
    replica: Replica = request.app.state.replica
    asked = decode_body(await read_body(request, max_bytes=replica.max_body_bytes), _LOAD)
    if asked.load_inplace:
        raise ProtocolError("load_inplace is not supported; unload the adapter first", param="load_inplace")
    if not _NAME.fullmatch(asked.lora_name) or asked.lora_name == replica.served_name:
        raise ProtocolError(f"{asked.lora_name!r} cannot be an adapter's name", param="lora_name")
    if asked.lora_name in replica.engine.report().adapters:
        raise ProtocolError(f"the adapter {asked.lora_name!r} is already loaded", param="lora_name")
    try:
        await asyncio.to_thread(replica.engine.load_adapter, asked.lora_name, Path(asked.lora_path))
    except AdapterError as error:
        raise ProtocolError(str(error), param="lora_path") from error
    replica.adapter_paths[asked.lora_name] = asked.lora_path
    return PlainTextResponse(f"Success: LoRA adapter '{asked.lora_name}' added successfully.")


async def unload_adapter(request: Request) -> Response:
    """An unknown name is a 404, raised by the engine."""
    replica: Replica = request.app.state.replica
    asked = decode_body(await read_body(request, max_bytes=replica.max_body_bytes), _UNLOAD)
    await asyncio.to_thread(replica.engine.unload_adapter, asked.lora_name)
    replica.adapter_paths.pop(asked.lora_name, None)
    return PlainTextResponse(f"Success: LoRA adapter '{asked.lora_name}' removed successfully.")
