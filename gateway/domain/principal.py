"""Who asks: what a key stands for."""

from dataclasses import dataclass, field
from typing import Literal
from uuid import UUID

from gateway.http.errors import Forbidden, NotFound

Scope = Literal["inference", "tenant-admin", "platform-admin"]


@dataclass(frozen=True, slots=True)
class Principal:
    tenant_id: UUID
    tenant_name: str
    key_id: UUID
    tier: str
    scopes: frozenset[str]
    is_local_only: bool = False
    """Its requests never leave for a provider outside."""
    tenant_text: str = field(init=False, repr=False, compare=False)
    """The ids as text, which every request needs several times."""
    key_text: str = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "tenant_text", str(self.tenant_id))
        object.__setattr__(self, "key_text", str(self.key_id))

    @property
    def is_platform_admin(self) -> bool:
        return "platform-admin" in self.scopes

    def require(self, *scopes: Scope) -> None:
        """Raise Forbidden unless the key has one of `scopes`."""
        if self.scopes.isdisjoint(scopes):
            raise Forbidden(f"this key lacks the scope {' or '.join(scopes)}; ask an administrator for another key")

    def require_tenant(self, tenant_id: UUID | None) -> None:
        """Raise NotFound unless an object of `tenant_id` is the principal's to administer."""
        if not self.is_platform_admin and tenant_id != self.tenant_id:
            raise NotFound("there is no such object")
