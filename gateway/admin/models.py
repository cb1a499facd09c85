from datetime import datetime
from typing import Annotated, Literal

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy import select

from gateway.admin.names import ModelId
from gateway.clock import utc_now
from gateway.domain.models.models import Model
from gateway.domain.models.service import declare_model
from gateway.http.pages import Page, PageDep, fetch_page
from gateway.services import AdminDep, PlatformDep, ServicesDep, SessionsDep

router = APIRouter(prefix="/models", tags=["models"])


class ModelDraft(BaseModel):
    """A model and the pool that serves it; posting an id again changes it."""

    model_config = ConfigDict(extra="forbid")

    id: ModelId
    pool: Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9_.-]+$")]
    context_window: Annotated[int, Field(ge=1, le=2**31 - 1)]
    kind: Literal["chat", "embedding"] = "chat"


class ModelView(BaseModel):
    model_config = ConfigDict(from_attributes=True)

    id: str
    pool: str
    context_window: int
    kind: str
    created_at: datetime


@router.post("", status_code=201)
async def post_model(draft: ModelDraft, admin: PlatformDep, services: ServicesDep) -> ModelView:
    model = await declare_model(
        services.sessions,
        admin,
        model_id=draft.id,
        pool=draft.pool,
        context_window=draft.context_window,
        kind=draft.kind,
        now=utc_now(),
    )
    await services.reload()
    return ModelView.model_validate(model)


@router.get("")
async def list_models(_admin: AdminDep, sessions: SessionsDep, page: PageDep) -> Page[ModelView]:
    async with sessions() as session:
        return await fetch_page(session, select(Model), Model.id, page, ModelView.model_validate)
