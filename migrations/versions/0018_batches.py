"""Add files of tenants, and batches that read and write them."""

import sqlalchemy as sa
from alembic import op

from migrations.effects import Effects

revision = "0018"
down_revision = "0016"
branch_labels = None
depends_on = None
effects = Effects()

_AT = sa.DateTime(timezone=True)
_MOMENTS = ("in_progress", "finalizing", "completed", "failed", "expired", "cancelling", "cancelled")


def upgrade() -> None:
    op.create_table(
        "files",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("tenant_id", sa.Uuid(), nullable=False),
        sa.Column("purpose", sa.String(32), nullable=False),
        sa.Column("filename", sa.String(255), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("created_at", _AT, nullable=False),
        sa.Column("expires_at", _AT),
        sa.Column("is_ready", sa.Boolean(), nullable=False),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name="fk_files_tenant_id_tenants"),
        sa.PrimaryKeyConstraint("id", name="pk_files"),
    )
    op.create_index("ix_files_tenant_id", "files", ["tenant_id"])
    op.create_index("ix_files_expires_at", "files", ["expires_at"])
    op.create_table(
        "batches",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("tenant_id", sa.Uuid(), nullable=False),
        sa.Column("key_id", sa.Uuid(), nullable=False),
        sa.Column("endpoint", sa.String(64), nullable=False),
        sa.Column("input_file_id", sa.Uuid(), nullable=False),
        sa.Column("completion_window", sa.String(8), nullable=False),
        sa.Column("metadata", sa.JSON()),
        sa.Column("output_lasts_s", sa.BigInteger(), nullable=False),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("model", sa.String(200)),
        sa.Column("errors", sa.JSON()),
        sa.Column("num_lines", sa.Integer(), nullable=False),
        sa.Column("num_completed", sa.Integer(), nullable=False),
        sa.Column("num_failed", sa.Integer(), nullable=False),
        sa.Column("output_file_id", sa.Uuid()),
        sa.Column("error_file_id", sa.Uuid()),
        sa.Column("created_at", _AT, nullable=False),
        sa.Column("expires_at", _AT, nullable=False),
        *(sa.Column(f"{name}_at", _AT) for name in _MOMENTS),
        sa.Column("holder", sa.String(64), nullable=False),
        sa.Column("held_until", _AT, nullable=False),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name="fk_batches_tenant_id_tenants"),
        sa.ForeignKeyConstraint(["key_id"], ["api_keys.id"], name="fk_batches_key_id_api_keys"),
        sa.PrimaryKeyConstraint("id", name="pk_batches"),
    )
    op.create_index("ix_batches_tenant_id", "batches", ["tenant_id"])
    op.create_index("ix_batches_status", "batches", ["status"])
    op.create_table(
        "batch_results",
        sa.Column("batch_id", sa.Uuid(), nullable=False),
        sa.Column("line", sa.Integer(), nullable=False, autoincrement=False),
        sa.Column("is_ok", sa.Boolean(), nullable=False),
        sa.Column("content", sa.LargeBinary(), nullable=False),
        sa.Column("event", sa.LargeBinary()),
        sa.ForeignKeyConstraint(
            ["batch_id"], ["batches.id"], name="fk_batch_results_batch_id_batches", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("batch_id", "line", name="pk_batch_results"),
    )
    op.execute("INSERT INTO locks (name, turn) VALUES ('files', 0)")
    op.execute("INSERT INTO leases (name, holder, until) VALUES ('files', '', '2000-01-01 00:00:00.000000')")


def downgrade() -> None:
    op.execute("DELETE FROM leases WHERE name = 'files'")
    op.execute("DELETE FROM locks WHERE name = 'files'")
    for table in ("batch_results", "batches", "files"):
        op.drop_table(table)
