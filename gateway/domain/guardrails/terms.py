from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal
from uuid import UUID

from gateway.domain import sealing
from gateway.domain.tools.sealing import origin_of
from gateway.peppers import Peppers

Side = Literal["input", "output"]
Checks = Literal["input", "output", "both"]
OnFailure = Literal["open", "closed"]
PURPOSE = b"tiergate guardrails"


@dataclass(frozen=True, slots=True)
class GuardrailTerms:
    """A guardrail as the catalog holds it."""

    id: UUID
    tenant_id: UUID | None
    name: str
    url: str
    sealed_authorization: bytes | None
    model: str | None
    checks: str
    categories: Sequence[str]
    deadline_ms: int
    on_failure: str
    window_chars: int

    def is_for(self, side: Side) -> bool:
        return self.checks in (side, "both")

    def authorization(self, *, peppers: Peppers) -> str | None:
        """Raises CannotUnseal."""
        if self.sealed_authorization is None:
            return None
        bound = bound_to(self.id, self.url)
        return sealing.unseal(self.sealed_authorization, purpose=PURPOSE, bound_to=bound, peppers=peppers).decode()


GuardrailsByTenant = Mapping[UUID | None, Sequence[GuardrailTerms]]


def seal_authorization(secret: str, *, guardrail_id: UUID, url: str, pepper: str) -> bytes:
    """Binds the secret to the guardrail and the origin of its URL, so that changing either cannot send it elsewhere."""
    return sealing.seal(secret.encode(), purpose=PURPOSE, bound_to=bound_to(guardrail_id, url), pepper=pepper)


def bound_to(guardrail_id: UUID, url: str) -> bytes:
    return guardrail_id.bytes + origin_of(url).encode()
