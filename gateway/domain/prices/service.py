from datetime import datetime, timedelta
from typing import Any, TypeVar
from uuid import UUID

from sqlalchemy.ext.asyncio import AsyncSession

from gateway.database import Sessions
from gateway.domain.adapters.models import Adapter
from gateway.domain.audit.fields import shown
from gateway.domain.audit.service import record
from gateway.domain.models.models import Model
from gateway.domain.prices.models import Discount, Price, Surcharge
from gateway.domain.prices.price_book import BATCHES
from gateway.domain.principal import Principal
from gateway.domain.tiers.models import Tier
from gateway.http.errors import Conflict, InvalidRequest, NotFound
from protocol.ids import new_id

_NOTICE = timedelta(seconds=10)
"""Gateways may hold a deleted price for this long; it must not come into force in that time."""
AnyPrice = Price | Surcharge | Discount
P = TypeVar("P", Price, Surcharge, Discount)
_NAMES = {Price: "price", Surcharge: "surcharge", Discount: "discount"}


async def add_price(
    sessions: Sessions,
    principal: Principal | None,
    *,
    model_id: str,
    prompt_nanousd: int,
    completion_nanousd: int,
    cached_prompt_nanousd: int | None,
    minimum_nanousd: int = 0,
    cached_answer_basis_points: int = 0,
    valid_from: datetime | None,
    is_correction: bool = False,
    now: datetime,
) -> Price:
    """Add a version of the model's price, valid from `valid_from` (None: now). With is_correction that may be past."""
    price = Price(
        version=str(new_id(now)),
        model_id=model_id,
        prompt_nanousd=prompt_nanousd,
        cached_prompt_nanousd=prompt_nanousd if cached_prompt_nanousd is None else cached_prompt_nanousd,
        completion_nanousd=completion_nanousd,
        minimum_nanousd=minimum_nanousd,
        cached_answer_basis_points=cached_answer_basis_points,
        valid_from=_start(valid_from, now, is_correction=is_correction),
        created_at=now,
    )
    async with sessions.begin() as session:
        await _check_model(session, model_id)
        await _add(session, principal, price, now)
    return price


async def add_surcharge(
    sessions: Sessions,
    principal: Principal | None,
    *,
    model_id: str,
    adapter_id: UUID | None,
    token_nanousd: int,
    valid_from: datetime | None,
    is_correction: bool,
    now: datetime,
) -> Surcharge:
    surcharge = Surcharge(
        version=str(new_id(now)),
        model_id=model_id,
        adapter_id=adapter_id,
        token_nanousd=token_nanousd,
        valid_from=_start(valid_from, now, is_correction=is_correction),
        created_at=now,
    )
    async with sessions.begin() as session:
        await _check_model(session, model_id)
        if adapter_id is not None and await session.get(Adapter, adapter_id) is None:
            raise InvalidRequest(f"there is no adapter {adapter_id}", param="adapter_id")
        await _add(session, principal, surcharge, now)
    return surcharge


async def add_discount(
    sessions: Sessions,
    principal: Principal | None,
    *,
    tier: str | None,
    basis_points: int,
    valid_from: datetime | None,
    is_correction: bool,
    now: datetime,
) -> Discount:
    """tier None: the discount of batches."""
    discount = Discount(
        version=str(new_id(now)),
        tier=BATCHES if tier is None else tier,
        basis_points=basis_points,
        valid_from=_start(valid_from, now, is_correction=is_correction),
        created_at=now,
    )
    async with sessions.begin() as session:
        if tier is not None and await session.get(Tier, tier) is None:
            raise InvalidRequest(f"there is no tier {tier!r}; GET /admin/v1/tiers lists them", param="tier")
        await _add(session, principal, discount, now)
    return discount


async def delete_version(
    sessions: Sessions, principal: Principal, kind: type[P], version: str, *, now: datetime
) -> None:
    """Delete a version that is not in force yet; usage is priced with the others. Raises NotFound or Conflict."""
    name = _NAMES[kind]
    async with sessions.begin() as session:
        row = await session.get(kind, version)
        if row is None:
            raise NotFound(f"there is no such {name}")
        if row.valid_from < now + _NOTICE:
            raise Conflict("usage is priced with this version; add a new one instead, which counts from now on")
        gone, detail = shown(row), _detail(row)
        await session.delete(row)
        action = f"{name}.delete"
        await record(session, principal, action, object_id=version, tenant_id=None, now=now, detail=detail, before=gone)


async def record_rerating(
    sessions: Sessions,
    principal: Principal,
    *,
    start: datetime,
    end: datetime,
    tenant_id: UUID | None,
    num_changed: int,
    difference_nanousd: int,
    now: datetime,
) -> None:
    detail = {
        "from": start.isoformat(),
        "to": end.isoformat(),
        "num_changed": num_changed,
        "difference_nanousd": difference_nanousd,
    }
    async with sessions.begin() as session:
        await record(session, principal, "price.rerate", object_id="usage", tenant_id=tenant_id, now=now, detail=detail)


def _start(valid_from: datetime | None, now: datetime, *, is_correction: bool) -> datetime:
    start = valid_from or now
    if start < now and not is_correction:
        raise InvalidRequest(
            "valid_from lies in the past, where usage is priced already; with is_correction it may, and then "
            "`tiergate price rerate` prices that usage anew",
            param="valid_from",
        )
    return start


async def _check_model(session: AsyncSession, model_id: str) -> None:
    if await session.get(Model, model_id) is None:
        raise InvalidRequest(f"there is no model {model_id!r}; declare it first", param="model_id")


async def _add(session: AsyncSession, principal: Principal | None, row: AnyPrice, now: datetime) -> None:
    session.add(row)
    action = f"{_NAMES[type(row)]}.add"
    await record(
        session, principal, action, object_id=row.version, tenant_id=None, now=now, detail=_detail(row), after=row
    )


def _detail(row: AnyPrice) -> dict[str, Any]:
    values = {column.key: getattr(row, column.key) for column in row.__table__.columns}
    shown = {name: value for name, value in values.items() if name not in ("version", "created_at")}
    return {name: value if isinstance(value, int) or value is None else _text(value) for name, value in shown.items()}


def _text(value: Any) -> str:
    return value.isoformat() if isinstance(value, datetime) else str(value)
