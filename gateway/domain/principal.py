"""The caller of a request: the bearer of a key, or a person at the console."""

from dataclasses import dataclass, field
from typing import Literal
from uuid import UUID

from gateway.domain.limits import LimitScope
from gateway.http.errors import Forbidden, NotFound
from gateway.http.proxies import Networks, is_within

Scope = Literal["inference", "usage", "tenant-admin", "platform-admin"]
"""`usage` reads the tenant's usage, spending and dashboard; administrators may do so without this scope."""
SEES_SPENDING: tuple[Scope, ...] = ("usage", "tenant-admin", "platform-admin")


@dataclass(frozen=True, slots=True)
class LoggedIn:
    """A person whom the identity provider vouches for."""

    person_id: UUID
    subject: str
    email: str | None


@dataclass(frozen=True, slots=True)
class Principal:
    tenant_id: UUID
    tenant_name: str
    key_id: UUID
    """The key's id; for a person, who has no key, the person's id."""
    tier: str
    scopes: frozenset[str]
    is_local_only: bool = False
    """Requests are never sent to an outside provider."""
    allowed_models: frozenset[str] | None = None
    """Pools, models, adapters or `auto`; None: all that the tenant may use."""
    allowed_networks: Networks | None = None
    """Networks that requests may come from; None: any."""
    limit_scopes: tuple[LimitScope, ...] = ()
    """The key's own scope, if the key has limits."""
    context_tokens: int | None = None
    default_max_tokens: int | None = None
    """This and `context_tokens` are the key's own, in place of the tier's; the tier's context remains a bound."""
    person: LoggedIn | None = None
    tenant_text: str = field(init=False, repr=False, compare=False)
    """The ids as text, because every request needs them several times."""
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
            wanted = " or ".join(scopes)
            if self.person is not None:
                raise Forbidden(f"your login does not give you {wanted}; ask an administrator for a role that does")
            raise Forbidden(f"this key lacks the scope {wanted}; ask an administrator for another key")

    @property
    def sees_spending(self) -> bool:
        return not self.scopes.isdisjoint(SEES_SPENDING)

    def require_address(self, address: str) -> None:
        """Raise Forbidden unless the key may be used from this address."""
        if self.allowed_networks is not None and not is_within(address, self.allowed_networks):
            raise Forbidden(
                f"this key may not be used from {address or 'this connection'}; its allowed_networks say from where",
                code="address_not_allowed",
            )

    def may_use(self, *names: str) -> bool:
        """Whether the key may use a model that has these names."""
        return self.allowed_models is None or not self.allowed_models.isdisjoint(names)

    def require_model(self, *names: str) -> None:
        """Raise Forbidden unless the key may use a model that has these names."""
        if self.allowed_models is not None and not self.may_use(*names):
            raise Forbidden(
                f"this key may not use the model {names[0]!r}; its allowed_models are "
                f"{', '.join(sorted(self.allowed_models))}",
                param="model",
                code="model_not_allowed",
            )

    def require_tenant(self, tenant_id: UUID | None) -> None:
        """Raise NotFound unless the principal may administer objects of `tenant_id`."""
        if not self.is_platform_admin and tenant_id != self.tenant_id:
            raise NotFound("there is no such object")
