"""Scores are now probabilities: adapt the complexity thresholds of tiers that still have their seeded one."""

import sqlalchemy as sa
from alembic import op

from migrations.effects import Effects

revision = "0011"
down_revision = "0008"
branch_labels = None
depends_on = None
effects = Effects()

_THRESHOLDS = (("free", 0.5, 0.25), ("pro", 0.4, 0.2), ("enterprise", 0.35, 0.15))


def upgrade() -> None:
    for name, old, new in _THRESHOLDS:
        _move(name, old, new)


def downgrade() -> None:
    for name, old, new in _THRESHOLDS:
        _move(name, new, old)


def _move(name: str, old: float, new: float) -> None:
    tiers = sa.table("tiers", sa.column("name"), sa.column("complexity_threshold"))
    is_untouched = (tiers.c.name == name) & (tiers.c.complexity_threshold == old)
    op.execute(sa.update(tiers).where(is_untouched).values(complexity_threshold=new))
