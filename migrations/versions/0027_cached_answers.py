"""Add the cache policies of tenants, and the share of the output's price that a cached answer costs."""

import sqlalchemy as sa
from alembic import op

from migrations.effects import Effects

revision = "0027"
down_revision = "0026"
branch_labels = None
depends_on = None
effects = Effects(locks=("prices",))


def upgrade() -> None:
    op.create_table(
        "cache_policies",
        sa.Column("tenant_id", sa.Uuid(), nullable=False),
        sa.Column("mode", sa.String(16), nullable=False),
        sa.Column("is_default", sa.Boolean(), nullable=False),
        sa.Column("ttl_s", sa.Integer(), nullable=False),
        sa.Column("min_similarity", sa.Double(), nullable=False),
        sa.Column("takes_sampled", sa.Boolean(), nullable=False),
        sa.Column("changed_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False, server_default="1"),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name="fk_cache_policies_tenant_id_tenants"),
        sa.PrimaryKeyConstraint("tenant_id", name="pk_cache_policies"),
    )
    op.add_column("prices", sa.Column("cached_answer_basis_points", sa.Integer(), nullable=False, server_default="0"))


def downgrade() -> None:
    with op.batch_alter_table("prices") as prices:
        prices.drop_column("cached_answer_basis_points")
    op.drop_table("cache_policies")
