from datetime import datetime

from gateway.audit.service import record
from gateway.billing.models import Price
from gateway.billing.schemas import PriceDraft
from gateway.database import Sessions
from gateway.errors import InvalidRequest
from gateway.identity import new_id
from gateway.models.models import Model
from gateway.principal import Principal


async def add_price(sessions: Sessions, principal: Principal | None, draft: PriceDraft, *, now: datetime) -> Price:
    valid_from = draft.valid_from or now
    if valid_from < now:
        raise InvalidRequest("valid_from lies in the past, where usage is priced already", param="valid_from")
    cached = draft.cached_prompt_nanousd
    price = Price(
        version=str(new_id(now)),
        model_id=draft.model_id,
        prompt_nanousd=draft.prompt_nanousd,
        cached_prompt_nanousd=draft.prompt_nanousd if cached is None else cached,
        completion_nanousd=draft.completion_nanousd,
        valid_from=valid_from,
        created_at=now,
    )
    async with sessions.begin() as session:
        if await session.get(Model, draft.model_id) is None:
            raise InvalidRequest(f"there is no model {draft.model_id!r}; declare it first", param="model_id")
        session.add(price)
        detail = draft.model_dump(mode="json")
        record(session, principal, "price.add", object_id=price.version, tenant_id=None, now=now, detail=detail)
    return price
