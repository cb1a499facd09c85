"""Tiers may be hedged: a request whose first token is late is also sent to a second replica."""

import sqlalchemy as sa
from alembic import op

from migrations.effects import Effects

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None
effects = Effects(locks=("tiers",))


def upgrade() -> None:
    op.add_column("tiers", sa.Column("is_hedged", sa.Boolean(), nullable=False, server_default=sa.false()))


def downgrade() -> None:
    with op.batch_alter_table("tiers") as tiers:
        tiers.drop_column("is_hedged")
