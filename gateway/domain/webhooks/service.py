import json
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Literal
from uuid import UUID

from sqlalchemy import CursorResult, Select, func, or_, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession

from gateway.database import Sessions
from gateway.domain.audit.fields import shown
from gateway.domain.audit.service import record
from gateway.domain.principal import Principal
from gateway.domain.tenants.models import Tenant
from gateway.domain.tenants.service import require_tenant
from gateway.domain.webhooks.models import Delivery, Lease, Webhook
from gateway.domain.webhooks.secrets import seal_secret
from gateway.http.errors import Conflict, NotFound
from protocol.ids import new_id

EventName = Literal["budget.80", "budget.100", "ping"]
MAX_WEBHOOKS = 10
"""Limit per tenant."""


def live_webhooks() -> Select[Webhook]:
    """Webhooks of tenants that are not deleted: earlier versions deleted tenants without their webhooks."""
    live = select(Tenant.id).where(Tenant.deleted_at.is_(None))
    return select(Webhook).where(Webhook.tenant_id.in_(live))


def webhooks_visible_to(tenant_id: UUID | None) -> Select[Webhook]:
    """A tenant's webhooks; None: all."""
    query = live_webhooks()
    return query if tenant_id is None else query.where(Webhook.tenant_id == tenant_id)


def deliveries_of(webhook_id: UUID) -> Select[Delivery]:
    return select(Delivery).where(Delivery.webhook_id == webhook_id)


async def create_webhook(
    sessions: Sessions,
    principal: Principal,
    *,
    tenant_id: UUID,
    url: str,
    events: Sequence[str],
    pepper: str,
    now: datetime,
) -> Webhook:
    """`url` has been checked by the caller. Raises NotFound or Conflict."""
    principal.require_tenant(tenant_id)
    webhook = Webhook(id=new_id(now), tenant_id=tenant_id, url=url, events=list(dict.fromkeys(events)), created_at=now)
    webhook.sealed_secret = seal_secret(webhook.id, origin=pepper, pepper=pepper)
    async with sessions.begin() as session:
        await require_tenant(session, tenant_id)
        count = select(func.count()).select_from(Webhook).where(Webhook.tenant_id == tenant_id)
        if (await session.scalar(count) or 0) >= MAX_WEBHOOKS:
            raise Conflict(f"a tenant has at most {MAX_WEBHOOKS} webhooks; delete one first")
        session.add(webhook)
        detail = {"url": url, "events": webhook.events}
        await record(
            session,
            principal,
            "webhook.create",
            object_id=webhook.id,
            tenant_id=tenant_id,
            now=now,
            detail=detail,
            after=webhook,
        )
    return webhook


async def get_webhook(session: AsyncSession, principal: Principal, webhook_id: UUID) -> Webhook:
    """Raises NotFound."""
    webhook = await session.get(Webhook, webhook_id)
    if webhook is None:
        raise NotFound("there is no such webhook")
    principal.require_tenant(webhook.tenant_id)
    return webhook


async def delete_webhook(sessions: Sessions, principal: Principal, webhook_id: UUID, *, now: datetime) -> None:
    """Events that were not delivered yet never are."""
    async with sessions.begin() as session:
        webhook = await get_webhook(session, principal, webhook_id)
        detail, before = {"url": webhook.url}, shown(webhook)
        await session.delete(webhook)
        await record(
            session,
            principal,
            "webhook.delete",
            object_id=webhook_id,
            tenant_id=webhook.tenant_id,
            now=now,
            detail=detail,
            before=before,
        )


async def ping(sessions: Sessions, principal: Principal, webhook_id: UUID, *, now: datetime) -> Delivery:
    """Queue a delivery to try out the webhook."""
    async with sessions.begin() as session:
        webhook = await get_webhook(session, principal, webhook_id)
        delivery = _delivery(webhook, "ping", f"ping:{new_id(now)}", {"tenant_id": str(webhook.tenant_id)}, now)
        session.add(delivery)
    return delivery


async def announce(
    sessions: Sessions, *, tenant_id: UUID, event: EventName, occasion: str, data: Mapping[str, Any], now: datetime
) -> int:
    """Queue the event for each of the tenant's webhooks that wants it. Returns how many had not been told yet."""
    async with sessions() as session:
        webhooks = [
            webhook for webhook in await session.scalars(webhooks_visible_to(tenant_id)) if event in webhook.events
        ]
    num_added = 0
    for webhook in webhooks:
        try:
            async with sessions.begin() as session:
                session.add(_delivery(webhook, event, f"{event}:{occasion}", data, now))
        except IntegrityError:
            # The webhook was told of this occasion before, or has just been deleted.
            continue
        num_added += 1
    return num_added


async def tenants_to_tell(sessions: Sessions, events: Collection[str]) -> list[UUID]:
    """Tenants with a webhook for one of these events."""
    async with sessions() as session:
        found = await session.scalars(live_webhooks())
        return list({webhook.tenant_id for webhook in found if not set(events).isdisjoint(webhook.events)})


async def hold_lease(sessions: Sessions, name: str, holder: str, *, now: datetime, lasts: timedelta) -> bool:
    """Take or keep the lease; False while another process holds it."""
    is_free = or_(Lease.holder == holder, Lease.until < now)
    async with sessions.begin() as session:
        taken = await session.execute(
            update(Lease).where(Lease.name == name, is_free).values(holder=holder, until=now + lasts)
        )
    assert isinstance(taken, CursorResult)
    return taken.rowcount == 1


def _delivery(webhook: Webhook, event: str, occasion: str, data: Mapping[str, Any], now: datetime) -> Delivery:
    delivery_id = new_id(now)
    body = {"id": str(delivery_id), "type": event, "created_at": now.isoformat(), "data": dict(data)}
    return Delivery(
        id=delivery_id,
        webhook_id=webhook.id,
        occasion=occasion,
        body=json.dumps(body, ensure_ascii=False),
        created_at=now,
        num_attempts=0,
        next_attempt_at=now,
    )
