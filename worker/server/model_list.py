"""`GET /v1/models` and `GET /v1/models/{model}`."""

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from protocol.responses import ModelCard, ModelList
from worker.server.replica import Replica, UnknownModel


async def model_list(request: Request) -> Response:
    models = _list_models(request.app.state.replica)
    return Response(msgspec.json.encode(models), media_type="application/json")


async def model_card(request: Request) -> Response:
    """Raises UnknownModel."""
    name = request.path_params["model"]
    for card in _list_models(request.app.state.replica).data:
        if card.id == name:
            return Response(msgspec.json.encode(card), media_type="application/json")
    raise UnknownModel(name)


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
