from datetime import datetime
from typing import Annotated, Literal

from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy import select

from gateway.admin.etags import IfMatchDep, TaggedRoute
from gateway.admin.names import Draft, ModelId, PoolName, Version
from gateway.clock import utc_now
from gateway.domain.models.models import Model
from gateway.domain.models.service import declare_model, delete_model
from gateway.http.pages import Page, PageDep, fetch_page
from gateway.services import AdminDep, PlatformDep, ServicesDep, SessionsDep

router = APIRouter(prefix="/models", tags=["models"], route_class=TaggedRoute)


class ModelDraft(Draft):
    """A model and the pool that serves it. Posting an existing `id` changes that model. No other model, pool or adapter
    may have the name of either."""

    id: ModelId
    pool: PoolName
    context_window: Annotated[int, Field(ge=1, le=2**31 - 1)]
    kind: Literal["chat", "embedding"] = "chat"
    version: Version | None = None


class ModelView(BaseModel):
    model_config = ConfigDict(from_attributes=True)

    id: str
    pool: str
    context_window: int
    kind: str
    created_at: datetime
    version: int


@router.post("", status_code=201)
async def post_model(draft: ModelDraft, admin: PlatformDep, services: ServicesDep) -> ModelView:
    model = await declare_model(
        services.sessions,
        admin,
        model_id=draft.id,
        pool=draft.pool,
        context_window=draft.context_window,
        kind=draft.kind,
        version=draft.version,
        now=utc_now(),
    )
    await services.reload()
    return ModelView.model_validate(model)


@router.get("")
async def list_models(
    _admin: AdminDep,
    sessions: SessionsDep,
    page: PageDep,
    pool: Annotated[str | None, Query(max_length=64)] = None,
) -> Page[ModelView]:
    query = select(Model) if pool is None else select(Model).where(Model.pool == pool)
    async with sessions() as session:
        return await fetch_page(session, query, Model.id, page, ModelView.model_validate)


@router.delete("/{model_id:path}", status_code=204)
async def remove_model(model_id: str, admin: PlatformDep, services: ServicesDep, if_match: IfMatchDep = None) -> None:
    """Delete a model; platform administrators only.

    Its id and its pool's name become free; its prices and usage are kept. 409 while adapters, tiers or the
    configuration name the model, or members serve it.
    """
    await delete_model(
        services.sessions,
        admin,
        model_id,
        configured_models={pool.model for pool in services.settings.all_pools.values()},
        served_pools={pool.name for pool in services.registry.fleet.pools.values() if pool.members},
        version=if_match,
        now=utc_now(),
    )
    await services.reload()
