from datetime import datetime

from sqlalchemy import select

from gateway.audit.service import record
from gateway.database import Sessions
from gateway.errors import Conflict, InvalidRequest
from gateway.models.models import Model
from gateway.models.schemas import RESERVED_NAMES, ModelDraft
from gateway.principal import Principal


async def declare_model(sessions: Sessions, principal: Principal | None, draft: ModelDraft, *, now: datetime) -> Model:
    """Create the model, or change the one of this id. A pool serves one model."""
    if not RESERVED_NAMES.isdisjoint({draft.id, draft.pool}):
        raise InvalidRequest("`auto` is the router's own name; choose another", param="id")
    async with sessions.begin() as session:
        holder = await session.scalar(select(Model).where(Model.pool == draft.pool))
        if holder is not None and holder.id != draft.id:
            raise Conflict(f"the pool {draft.pool!r} serves {holder.id!r} already; one model a pool", param="pool")
        model = await session.get(Model, draft.id)
        if model is None:
            model = Model(**draft.model_dump(), created_at=now)
            session.add(model)
        elif (model.pool, model.context_window, model.kind) == (draft.pool, draft.context_window, draft.kind):
            return model
        model.pool, model.context_window, model.kind = draft.pool, draft.context_window, draft.kind
        record(
            session, principal, "model.declare", object_id=draft.id, tenant_id=None, now=now, detail=draft.model_dump()
        )
    return model
