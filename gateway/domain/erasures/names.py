"""Seals the name of an end user who is being erased, so that the erasure never stores it in plain text."""

from uuid import UUID

from gateway.domain.sealing import CannotUnseal, seal, unseal
from gateway.peppers import Peppers

PURPOSE = b"tiergate erasures"


def seal_name(name: str, *, erasure_id: UUID, pepper: str) -> bytes:
    return seal(name.encode(), purpose=PURPOSE, bound_to=erasure_id.bytes, pepper=pepper)


def unseal_name(sealed: bytes, *, erasure_id: UUID, peppers: Peppers) -> str | None:
    """None if the name was sealed under none of `peppers`."""
    try:
        return unseal(sealed, purpose=PURPOSE, bound_to=erasure_id.bytes, peppers=peppers).decode()
    except CannotUnseal:
        return None
