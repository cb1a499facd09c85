"""Add webhooks, their deliveries, and the lease of the one process that delivers."""

import sqlalchemy as sa
from alembic import op

from migrations.effects import Effects

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None
effects = Effects()

_AT = sa.DateTime(timezone=True)


def upgrade() -> None:
    op.create_table(
        "webhooks",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("tenant_id", sa.Uuid(), nullable=False),
        sa.Column("url", sa.String(2000), nullable=False),
        sa.Column("events", sa.JSON(), nullable=False),
        sa.Column("created_at", _AT, nullable=False),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name="fk_webhooks_tenant_id_tenants"),
        sa.PrimaryKeyConstraint("id", name="pk_webhooks"),
    )
    op.create_index("ix_webhooks_tenant_id", "webhooks", ["tenant_id"])
    op.create_table(
        "webhook_deliveries",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("webhook_id", sa.Uuid(), nullable=False),
        sa.Column("occasion", sa.String(120), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("created_at", _AT, nullable=False),
        sa.Column("num_attempts", sa.Integer(), nullable=False),
        sa.Column("next_attempt_at", _AT),
        sa.Column("delivered_at", _AT),
        sa.Column("last_status", sa.Integer()),
        sa.Column("last_error", sa.String(300)),
        sa.ForeignKeyConstraint(
            ["webhook_id"], ["webhooks.id"], name="fk_webhook_deliveries_webhook_id_webhooks", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_webhook_deliveries"),
        sa.UniqueConstraint("webhook_id", "occasion", name="uq_webhook_deliveries_webhook_id_occasion"),
    )
    op.create_index("ix_webhook_deliveries_next_attempt_at", "webhook_deliveries", ["next_attempt_at"])
    op.create_table(
        "leases",
        sa.Column("name", sa.String(32), nullable=False),
        sa.Column("holder", sa.String(64), nullable=False),
        sa.Column("until", _AT, nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_leases"),
    )
    for name in ("webhooks", "budget-alerts"):
        op.execute(f"INSERT INTO leases (name, holder, until) VALUES ('{name}', '', '2000-01-01 00:00:00.000000')")


def downgrade() -> None:
    for table in ("leases", "webhook_deliveries", "webhooks"):
        op.drop_table(table)
