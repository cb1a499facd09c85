"""Adapters that the platform stores: add their artifacts, and the version, status and digest of each variant."""

import sqlalchemy as sa
from alembic import op

from migrations.effects import Effects

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None
effects = Effects(locks=("adapter_variants",))

_AT = sa.DateTime(timezone=True)
_DIGEST_KEY = "fk_adapter_variants_digest_adapter_artifacts"


def upgrade() -> None:
    op.create_table(
        "adapter_artifacts",
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("rank", sa.Integer(), nullable=False),
        sa.Column("num_layers", sa.Integer(), nullable=False),
        sa.Column("shapes", sa.JSON(), nullable=False),
        sa.Column("created_at", _AT, nullable=False),
        sa.Column("unused_at", _AT),
        sa.Column("is_leaving", sa.Boolean(), nullable=False, server_default=sa.false()),
        sa.PrimaryKeyConstraint("digest", name="pk_adapter_artifacts"),
    )
    with op.batch_alter_table("adapter_variants") as variants:
        variants.add_column(sa.Column("digest", sa.String(64)))
        variants.add_column(sa.Column("version", sa.Integer(), nullable=False, server_default="1"))
        variants.add_column(sa.Column("status", sa.String(16), nullable=False, server_default="ready"))
        variants.add_column(sa.Column("reason", sa.String(600)))
        variants.add_column(sa.Column("changed_at", _AT))
        variants.create_foreign_key(_DIGEST_KEY, "adapter_artifacts", ["digest"], ["digest"])
        variants.create_index("ix_adapter_variants_digest", ["digest"])
    op.execute("INSERT INTO leases (name, holder, until) VALUES ('adapters', '', '2000-01-01 00:00:00.000000')")


def downgrade() -> None:
    """Adapters that only the artifact store holds are deleted, since the earlier version has no store."""
    op.execute("DELETE FROM leases WHERE name = 'adapters'")
    op.execute("DELETE FROM adapter_variants WHERE digest IS NOT NULL")
    op.execute("DELETE FROM adapters WHERE id NOT IN (SELECT adapter_id FROM adapter_variants)")
    with op.batch_alter_table("adapter_variants") as variants:
        variants.drop_index("ix_adapter_variants_digest")
        variants.drop_constraint(_DIGEST_KEY, type_="foreignkey")
        for name in ("changed_at", "reason", "status", "version", "digest"):
            variants.drop_column(name)
    op.drop_table("adapter_artifacts")
