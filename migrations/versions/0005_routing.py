"""Tiers get a threshold for uncertain scores and a TTFT target; tenants can be local only."""

import sqlalchemy as sa
from alembic import op

from migrations.effects import Effects

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None
effects = Effects(locks=("tenants", "tiers"))


def upgrade() -> None:
    op.add_column("tiers", sa.Column("uncertain_threshold", sa.Double()))
    op.add_column("tiers", sa.Column("ttft_target_ms", sa.Integer()))
    op.add_column("tenants", sa.Column("is_local_only", sa.Boolean(), nullable=False, server_default=sa.false()))
    # Enterprise requests wait for their model instead of being served by a smaller one.
    op.execute("UPDATE tiers SET uncertain_threshold = 0.2, ttft_target_ms = 500 WHERE name = 'enterprise'")
    op.execute("UPDATE tiers SET on_saturation = 'queue' WHERE name = 'enterprise' AND on_saturation = 'fallback'")


def downgrade() -> None:
    op.execute("UPDATE tiers SET on_saturation = 'fallback' WHERE name = 'enterprise' AND on_saturation = 'queue'")
    with op.batch_alter_table("tenants") as tenants:
        tenants.drop_column("is_local_only")
    with op.batch_alter_table("tiers") as tiers:
        tiers.drop_column("ttft_target_ms")
        tiers.drop_column("uncertain_threshold")
