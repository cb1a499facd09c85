"""Add server tools, which the platform itself calls."""

import sqlalchemy as sa
from alembic import op

from migrations.effects import Effects

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None
effects = Effects()

_AT = sa.DateTime(timezone=True)


def upgrade() -> None:
    op.create_table(
        "server_tools",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("tenant_id", sa.Uuid()),
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("description", sa.Text(), nullable=False),
        sa.Column("parameters", sa.JSON(), nullable=False),
        sa.Column("url", sa.String(2000), nullable=False),
        sa.Column("credential_header", sa.String(100)),
        sa.Column("sealed_credential", sa.LargeBinary()),
        sa.Column("timeout_s", sa.Double(), nullable=False),
        sa.Column("max_result_bytes", sa.Integer(), nullable=False),
        sa.Column("max_rounds", sa.Integer(), nullable=False),
        sa.Column("is_enabled", sa.Boolean(), nullable=False),
        sa.Column("created_at", _AT, nullable=False),
        sa.Column("changed_at", _AT, nullable=False),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name="fk_server_tools_tenant_id_tenants"),
        sa.PrimaryKeyConstraint("id", name="pk_server_tools"),
        sa.UniqueConstraint("tenant_id", "name", name="uq_server_tools_tenant_id_name"),
    )
    op.create_index("ix_server_tools_name", "server_tools", ["name"])


def downgrade() -> None:
    op.drop_table("server_tools")
