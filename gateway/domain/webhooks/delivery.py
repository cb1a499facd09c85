"""Delivers events at least once: signed, with retries, by the one process that holds the lease."""

import asyncio
import base64
import hashlib
import hmac
import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import update
from sqlalchemy.exc import SQLAlchemyError

from gateway.clock import utc_now
from gateway.database import Sessions
from gateway.domain.sealing import CannotUnseal
from gateway.domain.webhooks.models import Delivery, Webhook
from gateway.domain.webhooks.secrets import SECRET_PREFIX, secret_of
from gateway.domain.webhooks.service import hold_lease, live_webhooks
from gateway.http.outbound import Outbound, OutboundFailed
from gateway.peppers import Peppers

_log = logging.getLogger(__name__)

POLL_S = 2.0
LEASE = timedelta(seconds=60)
"""Longer than a round takes, because each attempt is bounded."""
BATCH = 20
RETRIES = tuple(timedelta(seconds=seconds) for seconds in (10, 60, 300, 1800, 2 * 3600, 5 * 3600, 10 * 3600, 24 * 3600))
"""The delay before each retry; if the last one fails too, the delivery is given up."""


@dataclass(frozen=True)
class _Due:
    delivery: Delivery
    webhook: Webhook


class WebhookSender:
    def __init__(
        self,
        sessions: Sessions,
        outbound: Outbound,
        *,
        peppers: Peppers,
        holder: str,
        clock: Callable[[], datetime] = utc_now,
    ) -> None:
        self._sessions = sessions
        self._outbound = outbound
        self._peppers = peppers
        self._holder = holder
        self._clock = clock

    async def send_forever(self) -> None:
        while True:
            await asyncio.sleep(POLL_S)
            try:
                await self.send_due()
            except (SQLAlchemyError, OSError, TimeoutError) as error:
                _log.warning("webhooks wait for the database: %s", error)

    async def send_due(self) -> int:
        """Try what is due. Returns how many attempts were made: 0 while another process holds the lease."""
        now = self._clock()
        # Usually nothing is due, and then nothing is written.
        if not await self._due(now):
            return 0
        if not await hold_lease(self._sessions, "webhooks", self._holder, now=now, lasts=LEASE):
            return 0
        # Read again, now that nobody else delivers.
        found = await self._due(now)
        async with asyncio.TaskGroup() as group:
            for each in found:
                group.create_task(self._try(each, now))
        return len(found)

    async def _due(self, now: datetime) -> list[_Due]:
        due = live_webhooks().join(Delivery, Webhook.id == Delivery.webhook_id).with_only_columns(Delivery, Webhook)
        due = due.where(Delivery.next_attempt_at <= now).order_by(Delivery.next_attempt_at).limit(BATCH)
        async with self._sessions() as session:
            return [_Due(delivery, webhook) for delivery, webhook in await session.execute(due)]

    async def _try(self, due: _Due, now: datetime) -> None:
        body = due.delivery.body.encode()
        status, problem = None, None
        try:
            secret = secret_of(due.webhook, peppers=self._peppers)
            headers = sign(body, delivery_id=str(due.delivery.id), secret=secret, now=now)
            answer = await self._outbound.post(due.webhook.url, body, headers)
            status = answer.status
            if not 200 <= status < 300:
                problem = f"it answered {status}"
        except CannotUnseal:
            problem = "its secret was sealed under a pepper that this gateway does not have"
        except OutboundFailed as error:
            problem = str(error)
        await self._note(due.delivery, status=status, problem=problem, now=now)

    async def _note(self, delivery: Delivery, *, status: int | None, problem: str | None, now: datetime) -> None:
        num_attempts = delivery.num_attempts + 1
        retry = RETRIES[num_attempts - 1] if problem is not None and num_attempts <= len(RETRIES) else None
        async with self._sessions.begin() as session:
            await session.execute(
                update(Delivery)
                .where(Delivery.id == delivery.id)
                .values(
                    num_attempts=num_attempts,
                    next_attempt_at=None if retry is None else now + retry,
                    delivered_at=now if problem is None else None,
                    last_status=status,
                    last_error=problem and problem[:300],
                )
            )


def sign(body: bytes, *, delivery_id: str, secret: str, now: datetime) -> dict[str, str]:
    """Headers of Standard Webhooks: HMAC-SHA256 over `id.timestamp.body`, so that no part can be changed or reused."""
    timestamp = str(int(now.timestamp()))
    key = base64.b64decode(secret.removeprefix(SECRET_PREFIX))
    digest = hmac.digest(key, b".".join((delivery_id.encode(), timestamp.encode(), body)), hashlib.sha256)
    return {
        "content-type": "application/json",
        "webhook-id": delivery_id,
        "webhook-timestamp": timestamp,
        "webhook-signature": f"v1,{base64.b64encode(digest).decode()}",
    }
