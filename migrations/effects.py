"""The effects of a revision on gateways that run during it and after it; `tiergate migrate --plan` shows them."""

from dataclasses import dataclass
from typing import Literal

OldGateways = Literal["serve", "serve without changes"]
"""What gateways of the version before the revision do once it has run. `serve without changes`: they serve requests,
but changes through their admin plane or console fail until they are replaced."""


@dataclass(frozen=True)
class Effects:
    old_gateways: OldGateways = "serve"
    locks: tuple[str, ...] = ()
    """Existing tables that PostgreSQL locks against all other sessions until the migration ends."""
    rewrites: tuple[str, ...] = ()
    """Tables of which every row is read and written, so the revision's duration grows with their number of rows."""
    rows_per_s: int = 5_000
    """Rewritten rows per second, for the estimated duration."""
    note: str = ""
