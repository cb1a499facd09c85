"""A sealed credential is bound to the tool and to the origin of its URL: nobody who may change the URL or the
database's rows can move it to another tool or have it sent to another server.
"""

from urllib.parse import urlsplit
from uuid import UUID

from gateway.domain import sealing
from gateway.domain.sealing import CannotUnseal
from gateway.peppers import Peppers

__all__ = ["CannotUnseal", "origin_of", "seal", "unseal"]

PURPOSE = b"tiergate server tools"


def seal(secret: str, *, tool_id: UUID, url: str, pepper: str) -> bytes:
    return sealing.seal(secret.encode(), purpose=PURPOSE, bound_to=bound_to(tool_id, url), pepper=pepper)


def unseal(sealed: bytes, *, tool_id: UUID, url: str, peppers: Peppers) -> str:
    """Raises CannotUnseal."""
    return sealing.unseal(sealed, purpose=PURPOSE, bound_to=bound_to(tool_id, url), peppers=peppers).decode()


def origin_of(url: str) -> str:
    """Scheme, host and port of a URL that `Outbound.check_url` accepted."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.hostname}:{parts.port or (443 if parts.scheme == 'https' else 80)}"


def bound_to(tool_id: UUID, url: str) -> bytes:
    return tool_id.bytes + origin_of(url).encode()
