"""The name of an end user who is being erased never stands in the database as it is."""

from uuid import UUID

from gateway.domain.sealing import CannotUnseal, seal, unseal
from gateway.peppers import Peppers

PURPOSE = b"tiergate erasures"


def seal_name(name: str, *, erasure_id: UUID, pepper: str) -> bytes:
    return seal(name.encode(), purpose=PURPOSE, bound_to=erasure_id.bytes, pepper=pepper)


def unseal_name(sealed: bytes, *, erasure_id: UUID, peppers: Peppers) -> str | None:
    """None: sealed under none of these."""
    try:
        return unseal(sealed, purpose=PURPOSE, bound_to=erasure_id.bytes, peppers=peppers).decode()
    except CannotUnseal:
        return None
