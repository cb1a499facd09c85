from fastapi import APIRouter
from sqlalchemy import select

from gateway.dependencies import AdminDep, PlatformDep, ServicesDep, SessionsDep
from gateway.identity import utc_now
from gateway.models.models import Model
from gateway.models.schemas import ModelDraft, ModelView
from gateway.models.service import declare_model
from gateway.pages import Page, PageDep, fetch_page

router = APIRouter(prefix="/models", tags=["models"])


@router.post("", status_code=201)
async def post_model(draft: ModelDraft, admin: PlatformDep, services: ServicesDep) -> ModelView:
    model = await declare_model(services.sessions, admin, draft, now=utc_now())
    await services.reload()
    return ModelView.model_validate(model)


@router.get("")
async def list_models(_admin: AdminDep, sessions: SessionsDep, page: PageDep) -> Page[ModelView]:
    async with sessions() as session:
        return await fetch_page(session, select(Model), Model.id, page, ModelView.model_validate)
