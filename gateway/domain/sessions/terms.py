from dataclasses import dataclass
from uuid import UUID

from gateway.domain import sealing
from gateway.peppers import Peppers

PURPOSE = b"tiergate sessions"


@dataclass(frozen=True, slots=True)
class SessionTerms:
    """A policy as the catalog holds it."""

    overflow: str = "window"
    is_encrypted: bool = False
    sealed_key: bytes | None = None
    version: int = 0

    def key(self, tenant_id: UUID, *, peppers: Peppers) -> bytes | None:
        """The key that reads the tenant's sealed sessions; None: it never had any. Raises CannotUnseal."""
        if self.sealed_key is None:
            return None
        return sealing.unseal(self.sealed_key, purpose=PURPOSE, bound_to=tenant_id.bytes, peppers=peppers)
