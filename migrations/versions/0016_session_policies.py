"""Add the session policies of tenants."""

import sqlalchemy as sa
from alembic import op

from migrations.effects import Effects

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None
effects = Effects()


def upgrade() -> None:
    op.create_table(
        "session_policies",
        sa.Column("tenant_id", sa.Uuid(), nullable=False),
        sa.Column("overflow", sa.String(16), nullable=False),
        sa.Column("is_encrypted", sa.Boolean(), nullable=False),
        sa.Column("sealed_key", sa.LargeBinary()),
        sa.Column("changed_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name="fk_session_policies_tenant_id_tenants"),
        sa.PrimaryKeyConstraint("tenant_id", name="pk_session_policies"),
    )


def downgrade() -> None:
    op.drop_table("session_policies")
