from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field

from gateway.admin.names import Draft, Id
from gateway.clock import utc_now
from gateway.domain.sealing import CannotUnseal
from gateway.domain.webhooks.models import Delivery, Webhook
from gateway.domain.webhooks.secrets import secret_of
from gateway.domain.webhooks.service import (
    EventName,
    create_webhook,
    delete_webhook,
    deliveries_of,
    get_webhook,
    ping,
    webhooks_visible_to,
)
from gateway.http.errors import Conflict
from gateway.http.pages import Page, PageDep, fetch_page
from gateway.services import AdminDep, ServicesDep, SessionsDep, asked_tenant

router = APIRouter(prefix="/webhooks", tags=["webhooks"])


class WebhookDraft(Draft):
    tenant_id: Id | None = None
    """Defaults to the key's own tenant."""
    url: Annotated[str, Field(max_length=2000)]
    """Must lead to a public address, which is checked again at each delivery."""
    events: Annotated[list[EventName], Field(min_length=1)]


class WebhookView(BaseModel):
    model_config = ConfigDict(from_attributes=True)

    id: UUID
    tenant_id: UUID
    url: str
    events: list[str]
    created_at: datetime


class NewWebhookView(WebhookView):
    secret: str
    """Deliveries are signed with it; docs/billing.md shows how to verify them."""


class DeliveryView(BaseModel):
    model_config = ConfigDict(from_attributes=True)

    id: UUID
    """Sent as the header `webhook-id`, the same in each attempt."""
    occasion: str
    created_at: datetime
    num_attempts: int
    next_attempt_at: datetime | None
    """Null once the event was delivered or given up."""
    delivered_at: datetime | None
    last_status: int | None
    last_error: str | None


@router.post("", status_code=201)
async def post_webhook(draft: WebhookDraft, admin: AdminDep, services: ServicesDep) -> NewWebhookView:
    services.outbound.check_url(draft.url)
    webhook = await create_webhook(
        services.sessions,
        admin,
        tenant_id=draft.tenant_id or admin.tenant_id,
        url=draft.url,
        events=draft.events,
        pepper=services.settings.peppers.current,
        now=utc_now(),
    )
    return NewWebhookView(**_fields(webhook), secret=_secret(services, webhook))


@router.get("")
async def list_webhooks(
    admin: AdminDep, sessions: SessionsDep, page: PageDep, tenant_id: UUID | None = None
) -> Page[WebhookView]:
    async with sessions() as session:
        query = webhooks_visible_to(asked_tenant(admin, tenant_id))
        return await fetch_page(session, query, Webhook.id, page, WebhookView.model_validate)


@router.get("/{webhook_id}/secret")
async def show_secret(webhook_id: UUID, admin: AdminDep, services: ServicesDep) -> NewWebhookView:
    async with services.sessions() as session:
        webhook = await get_webhook(session, admin, webhook_id)
    return NewWebhookView(**_fields(webhook), secret=_secret(services, webhook))


@router.get("/{webhook_id}/deliveries")
async def list_deliveries(
    webhook_id: UUID, admin: AdminDep, sessions: SessionsDep, page: PageDep
) -> Page[DeliveryView]:
    async with sessions() as session:
        await get_webhook(session, admin, webhook_id)
        return await fetch_page(session, deliveries_of(webhook_id), Delivery.id, page, DeliveryView.model_validate)


@router.post("/{webhook_id}/ping", status_code=202)
async def ping_webhook(webhook_id: UUID, admin: AdminDep, sessions: SessionsDep) -> DeliveryView:
    """Queue a `ping` event for delivery, to try the webhook out."""
    return DeliveryView.model_validate(await ping(sessions, admin, webhook_id, now=utc_now()))


@router.delete("/{webhook_id}", status_code=204)
async def remove_webhook(webhook_id: UUID, admin: AdminDep, sessions: SessionsDep) -> None:
    """Delete a webhook. Events not delivered yet are dropped."""
    await delete_webhook(sessions, admin, webhook_id, now=utc_now())


def _fields(webhook: Webhook) -> dict[str, Any]:
    return WebhookView.model_validate(webhook).model_dump()


def _secret(services: ServicesDep, webhook: Webhook) -> str:
    try:
        return secret_of(webhook, peppers=services.settings.peppers)
    except CannotUnseal:
        raise Conflict("its secret was sealed under a pepper that this gateway does not have") from None
