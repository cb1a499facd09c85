"""Prices get a minimum per request; add surcharges of adapters and discounts of tiers."""

import sqlalchemy as sa
from alembic import op

from migrations.effects import Effects

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None
effects = Effects(locks=("prices",))

_AT = sa.DateTime(timezone=True)


def upgrade() -> None:
    op.add_column("prices", sa.Column("minimum_nanousd", sa.BigInteger(), nullable=False, server_default="0"))
    op.create_table(
        "adapter_surcharges",
        sa.Column("version", sa.String(64), nullable=False),
        sa.Column("model_id", sa.String(200), nullable=False),
        sa.Column("adapter_id", sa.Uuid()),
        sa.Column("token_nanousd", sa.BigInteger(), nullable=False),
        sa.Column("valid_from", _AT, nullable=False),
        sa.Column("created_at", _AT, nullable=False),
        sa.PrimaryKeyConstraint("version", name="pk_adapter_surcharges"),
    )
    op.create_table(
        "tier_discounts",
        sa.Column("version", sa.String(64), nullable=False),
        sa.Column("tier", sa.String(64), nullable=False),
        sa.Column("basis_points", sa.Integer(), nullable=False),
        sa.Column("valid_from", _AT, nullable=False),
        sa.Column("created_at", _AT, nullable=False),
        sa.PrimaryKeyConstraint("version", name="pk_tier_discounts"),
    )


def downgrade() -> None:
    op.drop_table("tier_discounts")
    op.drop_table("adapter_surcharges")
    with op.batch_alter_table("prices") as prices:
        prices.drop_column("minimum_nanousd")
