"""Rows written by versions that did not record which pepper they depend on."""

from sqlalchemy import select, update

from gateway.database import Sessions
from gateway.domain.audit.chain import sealed_with
from gateway.domain.audit.models import AuditHead
from gateway.domain.keys.models import ApiKey
from gateway.domain.webhooks.models import Webhook
from gateway.domain.webhooks.secrets import seal_secret
from gateway.peppers import Peppers, id_of


async def note_origin(sessions: Sessions, peppers: Peppers) -> None:
    """Give such keys the id of their pepper, and seal the secret that such webhooks have. The audit log's last seal
    tells which pepper it is. Idempotent; nearly always there is nothing to do."""
    no_id, no_secret = ApiKey.pepper_id.is_(None), Webhook.sealed_secret.is_(None)
    no_previous_id = ApiKey.previous_secret_hash.is_not(None) & ApiKey.previous_pepper_id.is_(None)
    async with sessions() as session:
        webhook_ids = (await session.scalars(select(Webhook.id).where(no_secret))).all()
        unmarked = select(ApiKey.id).where(no_id | no_previous_id).limit(1)
        if not webhook_ids and await session.scalar(unmarked) is None:
            return
        head = await session.scalar(select(AuditHead))
    sealed = None if head is None else sealed_with(head.seal, head.num_rows, head.hash, peppers=peppers)
    origin = sealed or peppers.current
    async with sessions.begin() as session:
        await session.execute(update(ApiKey).where(no_id).values(pepper_id=id_of(origin)))
        await session.execute(update(ApiKey).where(no_previous_id).values(previous_pepper_id=id_of(origin)))
        for webhook_id in webhook_ids:
            secret = seal_secret(webhook_id, origin=origin, pepper=peppers.current)
            await session.execute(
                update(Webhook).where(Webhook.id == webhook_id, no_secret).values(sealed_secret=secret)
            )
