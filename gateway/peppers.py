"""The platform's pepper, and those beside it while it is replaced by another."""

import hashlib
import hmac
from collections.abc import Iterable
from dataclasses import dataclass, field

ID_BYTES = 8


@dataclass(frozen=True, slots=True)
class Peppers:
    """Everything new is made with `current`; what was made with any of them is read."""

    current: str = field(repr=False)
    old: tuple[str, ...] = field(default=(), repr=False)
    upcoming: str | None = field(default=None, repr=False)
    """What gateways that were switched earlier may already write with."""

    @property
    def all(self) -> tuple[str, ...]:
        """The current one first."""
        return (self.current, *self.old, *(() if self.upcoming is None else (self.upcoming,)))

    def likely(self, pepper_id: bytes | None) -> Iterable[str]:
        """All, those first that are probable."""
        return sorted(self.all, key=lambda pepper: pepper_id is not None and id_of(pepper) != pepper_id)


def id_of(pepper: str) -> bytes:
    """Tells peppers apart and nothing about them: ID_BYTES of an HMAC."""
    return hmac.digest(pepper.encode(), b"tiergate pepper id", hashlib.sha256)[:ID_BYTES]
