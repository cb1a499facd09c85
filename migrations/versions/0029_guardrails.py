"""Add guardrails, which are hooks that check the prompts and answers of models."""

import sqlalchemy as sa
from alembic import op

from migrations.effects import Effects

revision = "0029"
down_revision = "0028"
branch_labels = None
depends_on = None
effects = Effects()

_AT = sa.DateTime(timezone=True)


def upgrade() -> None:
    op.create_table(
        "guardrails",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("tenant_id", sa.Uuid()),
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("url", sa.String(2000), nullable=False),
        sa.Column("sealed_authorization", sa.LargeBinary()),
        sa.Column("model", sa.String(200)),
        sa.Column("checks", sa.String(8), nullable=False),
        sa.Column("categories", sa.JSON(), nullable=False),
        sa.Column("deadline_ms", sa.Integer(), nullable=False),
        sa.Column("on_failure", sa.String(8), nullable=False),
        sa.Column("window_chars", sa.Integer(), nullable=False),
        sa.Column("is_enabled", sa.Boolean(), nullable=False),
        sa.Column("created_at", _AT, nullable=False),
        sa.Column("changed_at", _AT, nullable=False),
        sa.Column("version", sa.Integer(), nullable=False, server_default="1"),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name="fk_guardrails_tenant_id_tenants"),
        sa.PrimaryKeyConstraint("id", name="pk_guardrails"),
        sa.UniqueConstraint("tenant_id", "name", name="uq_guardrails_tenant_id_name"),
    )


def downgrade() -> None:
    op.drop_table("guardrails")
