"""Objects have versions, so that a stale edit is refused."""

import sqlalchemy as sa
from alembic import op

from migrations.effects import Effects

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None
effects = Effects(
    locks=(
        "api_keys",
        "billing_accounts",
        "end_users",
        "models",
        "server_tools",
        "session_policies",
        "tenants",
        "tiers",
    ),
    note="edits through older gateways do not count as new versions",
)

_TABLES = (
    *("tenants", "end_users", "api_keys", "tiers", "models", "server_tools"),
    *("session_policies", "billing_accounts"),
)


def upgrade() -> None:
    for table in _TABLES:
        op.add_column(table, sa.Column("version", sa.Integer(), nullable=False, server_default="1"))


def downgrade() -> None:
    for table in _TABLES:
        op.drop_column(table, "version")
