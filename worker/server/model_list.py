"""`GET /v1/models`."""

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from protocol.responses import ModelCard, ModelList
from worker.server.replica import Replica


async def model_list(request: Request) -> Response:
    models = _list_models(request.app.state.replica)
    return Response(msgspec.json.encode(models), media_type="application/json")


def _list_models(replica: Replica) -> ModelList:
    """The base model first; adapters name it as their `parent`, as vLLM does."""
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
