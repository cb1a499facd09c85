"""Contents of audit rows can be erased: new rows have a salted hash of them. Erasures are durable jobs."""

import sqlalchemy as sa
from alembic import op

revision = "0023"
down_revision = "0021"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("audit_log", sa.Column("salt", sa.LargeBinary(16)))
    op.add_column("audit_log", sa.Column("contents_hash", sa.LargeBinary(32)))
    op.add_column("audit_log", sa.Column("is_erased", sa.Boolean(), nullable=False, server_default=sa.false()))


def downgrade() -> None:
    # Rows that were written since do not verify any more.
    for name in ("is_erased", "contents_hash", "salt"):
        op.drop_column("audit_log", name)
