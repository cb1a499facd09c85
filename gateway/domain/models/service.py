from datetime import datetime

from sqlalchemy import select

from gateway.database import Sessions
from gateway.domain.audit.service import record
from gateway.domain.models.models import Model
from gateway.domain.principal import Principal
from gateway.http.errors import Conflict, InvalidRequest

RESERVED_NAMES = frozenset({"auto"})


async def declare_model(
    sessions: Sessions,
    principal: Principal | None,
    *,
    model_id: str,
    pool: str,
    context_window: int,
    kind: str,
    now: datetime,
) -> Model:
    """Create the model, or change the one of this id. A pool serves one model."""
    fields = {"pool": pool, "context_window": context_window, "kind": kind}
    if not RESERVED_NAMES.isdisjoint({model_id, pool}):
        raise InvalidRequest("`auto` is the router's own name; choose another", param="id")
    async with sessions.begin() as session:
        holder = await session.scalar(select(Model).where(Model.pool == pool))
        if holder is not None and holder.id != model_id:
            raise Conflict(f"the pool {pool!r} serves {holder.id!r} already; one model a pool", param="pool")
        model = await session.get(Model, model_id)
        if model is None:
            model = Model(id=model_id, **fields, created_at=now)
            session.add(model)
        elif (model.pool, model.context_window, model.kind) == (pool, context_window, kind):
            return model
        model.pool, model.context_window, model.kind = pool, context_window, kind
        detail = {"id": model_id, **fields}
        record(session, principal, "model.declare", object_id=model_id, tenant_id=None, now=now, detail=detail)
    return model
