"""The platform's pepper, and the previous and next peppers while it is being replaced."""

import hashlib
import hmac
from collections.abc import Iterable
from dataclasses import dataclass, field

ID_BYTES = 8


@dataclass(frozen=True, slots=True)
class Peppers:
    """New data is made with `current`; data made with any of the peppers can be read."""

    current: str = field(repr=False)
    old: tuple[str, ...] = field(default=(), repr=False)
    upcoming: str | None = field(default=None, repr=False)
    """The next pepper, which gateways that were switched earlier may already write with."""

    @property
    def all(self) -> tuple[str, ...]:
        """All peppers, the current one first."""
        return (self.current, *self.old, *(() if self.upcoming is None else (self.upcoming,)))

    def likely(self, pepper_id: bytes | None) -> Iterable[str]:
        """All peppers, the one with the id `pepper_id` first."""
        return sorted(self.all, key=lambda pepper: pepper_id is not None and id_of(pepper) != pepper_id)


def id_of(pepper: str) -> bytes:
    """Identifies a pepper without revealing anything about it: ID_BYTES of an HMAC."""
    return hmac.digest(pepper.encode(), b"tiergate pepper id", hashlib.sha256)[:ID_BYTES]
