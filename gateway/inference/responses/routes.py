"""`/v1/responses/{id}`: stored responses."""

from typing import Annotated, Any, Literal

import msgspec
from fastapi import APIRouter, Depends, Query
from starlette.responses import Response

from gateway.domain.principal import Principal
from gateway.http.errors import NotFound
from gateway.inference.query import refuse_other_query
from gateway.inference.responses.step import response_place
from gateway.services import PrincipalDep, Services, ServicesDep
from gateway.sessions.responses import StoredResponse

router = APIRouter(prefix="/v1/responses", tags=["responses"], dependencies=[Depends(refuse_other_query)])
_JSON: dict[int | str, dict[str, Any]] = {200: {"content": {"application/json": {}}}}


@router.get("/{response_id}", response_class=Response, responses=_JSON)
async def show_response(response_id: str, principal: PrincipalDep, services: ServicesDep) -> Response:
    stored = await _stored(services, principal, response_id)
    return Response(bytes(stored.response), media_type="application/json")


@router.delete("/{response_id}", response_class=Response, responses=_JSON)
async def delete_response(response_id: str, principal: PrincipalDep, services: ServicesDep) -> Response:
    principal.require("inference")
    await services.response_store.delete(response_place(services, principal, response_id))
    return _json({"id": response_id, "object": "response", "deleted": True})


@router.get("/{response_id}/input_items", response_class=Response, responses=_JSON)
async def list_input_items(
    response_id: str,
    principal: PrincipalDep,
    services: ServicesDep,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
    order: Literal["asc", "desc"] = "desc",
    after: Annotated[str | None, Query(max_length=200)] = None,
) -> Response:
    stored = await _stored(services, principal, response_id)
    items = [msgspec.json.decode(item) for item in stored.input_items]
    if order == "desc":
        items.reverse()
    if after is not None:
        ids = [item["id"] for item in items]
        if after not in ids:
            raise NotFound(f"there is no item {after!r} of this response")
        items = items[ids.index(after) + 1 :]
    shown = items[:limit]
    return _json(
        {
            "object": "list",
            "data": shown,
            "first_id": shown[0]["id"] if shown else None,
            "last_id": shown[-1]["id"] if shown else None,
            "has_more": len(shown) < len(items),
        }
    )


async def _stored(services: Services, principal: Principal, response_id: str) -> StoredResponse:
    principal.require("inference")
    return (await services.response_store.get(response_place(services, principal, response_id))).value


def _json(value: object) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")
