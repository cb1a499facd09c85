"""Secrets that sign deliveries: derived from the pepper when the webhook is made (in earlier versions: each time), and
sealed from then on, so that receivers need no new secret when the pepper is replaced."""

import base64
import hashlib
import hmac
from uuid import UUID

from gateway.domain import sealing
from gateway.domain.webhooks.models import Webhook
from gateway.peppers import Peppers

PURPOSE = b"tiergate webhooks"
SECRET_PREFIX = "whsec_"


def secret_of(webhook: Webhook, *, peppers: Peppers) -> str:
    """32 bytes in base64 after a prefix, the format of Standard Webhooks. Raises CannotUnseal."""
    if webhook.sealed_secret is None:
        secret = _derived(webhook.id, pepper=peppers.current)
    else:
        secret = sealing.unseal(webhook.sealed_secret, purpose=PURPOSE, bound_to=webhook.id.bytes, peppers=peppers)
    return SECRET_PREFIX + base64.b64encode(secret).decode()


def seal_secret(webhook_id: UUID, *, origin: str, pepper: str) -> bytes:
    """origin: the pepper that the secret is derived from."""
    secret = _derived(webhook_id, pepper=origin)
    return sealing.seal(secret, purpose=PURPOSE, bound_to=webhook_id.bytes, pepper=pepper)


def _derived(webhook_id: UUID, *, pepper: str) -> bytes:
    return hmac.digest(pepper.encode(), b"webhook:" + webhook_id.bytes, hashlib.sha256)
