from datetime import datetime, timedelta

from gateway.database import Sessions
from gateway.domain.audit.service import record
from gateway.domain.models.models import Model
from gateway.domain.prices.models import Price
from gateway.domain.principal import Principal
from gateway.http.errors import Conflict, InvalidRequest, NotFound
from protocol.ids import new_id

_NOTICE = timedelta(seconds=10)
"""Gateways may still hold a price that was deleted this long ago; it must not have come into force meanwhile."""


async def add_price(
    sessions: Sessions,
    principal: Principal | None,
    *,
    model_id: str,
    prompt_nanousd: int,
    completion_nanousd: int,
    cached_prompt_nanousd: int | None,
    valid_from: datetime | None,
    now: datetime,
) -> Price:
    """A new version of the model's price, from `valid_from` (None: now) on."""
    valid_from = valid_from or now
    if valid_from < now:
        raise InvalidRequest("valid_from lies in the past, where usage is priced already", param="valid_from")
    price = Price(
        version=str(new_id(now)),
        model_id=model_id,
        prompt_nanousd=prompt_nanousd,
        cached_prompt_nanousd=prompt_nanousd if cached_prompt_nanousd is None else cached_prompt_nanousd,
        completion_nanousd=completion_nanousd,
        valid_from=valid_from,
        created_at=now,
    )
    async with sessions.begin() as session:
        if await session.get(Model, model_id) is None:
            raise InvalidRequest(f"there is no model {model_id!r}; declare it first", param="model_id")
        session.add(price)
        detail = {
            "model_id": model_id,
            "prompt_nanousd": price.prompt_nanousd,
            "cached_prompt_nanousd": price.cached_prompt_nanousd,
            "completion_nanousd": price.completion_nanousd,
            "valid_from": valid_from.isoformat(),
        }
        record(session, principal, "price.add", object_id=price.version, tenant_id=None, now=now, detail=detail)
    return price


async def delete_price(sessions: Sessions, principal: Principal, version: str, *, now: datetime) -> None:
    """Only one that is not in force yet: usage was priced with the others. Raises NotFound or Conflict."""
    async with sessions.begin() as session:
        price = await session.get(Price, version)
        if price is None:
            raise NotFound("there is no such price")
        if price.valid_from < now + _NOTICE:
            raise Conflict("usage is priced with this version; add a new one instead, which counts from now on")
        await session.delete(price)
        detail = {"model_id": price.model_id, "valid_from": price.valid_from.isoformat()}
        record(session, principal, "price.delete", object_id=version, tenant_id=None, now=now, detail=detail)
