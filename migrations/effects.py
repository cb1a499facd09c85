"""What a revision does to gateways that still run while it does, and after it: told by `tiergate migrate --plan`."""

from dataclasses import dataclass
from typing import Literal

OldGateways = Literal["serve", "serve without changes"]
"""Of the version before the revision, once it has run. `serve without changes`: requests go on, but what somebody
changes with the admin plane or the console fails until the gateway is replaced."""


@dataclass(frozen=True)
class Effects:
    old_gateways: OldGateways = "serve"
    locks: tuple[str, ...] = ()
    """Tables that were there before and that PostgreSQL keeps from all others until the migration ends."""
    rewrites: tuple[str, ...] = ()
    """Tables whose every row is read and written, so that it takes the longer the more there are."""
    rows_per_s: int = 5_000
    """Of those, to judge by."""
    note: str = ""
