"""Add people who log in through an identity provider, their console visits, and their names in the audit log."""

import sqlalchemy as sa
from alembic import op

from migrations.effects import Effects

revision = "0028"
down_revision = "0027"
branch_labels = None
depends_on = None
effects = Effects(locks=("audit_log", "console_visits"))

_AT = sa.DateTime(timezone=True)


def upgrade() -> None:
    op.create_table(
        "people",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("issuer", sa.String(500), nullable=False),
        sa.Column("subject", sa.String(255), nullable=False),
        sa.Column("email", sa.String(320), nullable=True),
        sa.Column("tenant_id", sa.Uuid(), nullable=False),
        sa.Column("scopes", sa.JSON(), nullable=False),
        sa.Column("logged_in_at", _AT, nullable=False),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name="fk_people_tenant_id_tenants"),
        sa.PrimaryKeyConstraint("id", name="pk_people"),
        sa.UniqueConstraint("issuer", "subject", name="uq_people_issuer_subject"),
    )
    op.create_index("ix_people_tenant_id", "people", ["tenant_id"])
    op.create_table(
        "spent_logins",
        sa.Column("state_hash", sa.LargeBinary(32), nullable=False),
        sa.Column("expires_at", _AT, nullable=False),
        sa.PrimaryKeyConstraint("state_hash", name="pk_spent_logins"),
    )
    op.create_index("ix_spent_logins_expires_at", "spent_logins", ["expires_at"])
    with op.batch_alter_table("console_visits") as batch:
        batch.alter_column("key_id", existing_type=sa.Uuid(), nullable=True)
        batch.add_column(sa.Column("person_id", sa.Uuid(), nullable=True))
        batch.add_column(sa.Column("idle_s", sa.Integer(), nullable=True))
        batch.add_column(sa.Column("idle_until", _AT, nullable=True))
        batch.add_column(sa.Column("provider_session", sa.String(255), nullable=True))
        batch.add_column(sa.Column("sealed_id_token", sa.LargeBinary(), nullable=True))
        batch.create_foreign_key("fk_console_visits_person_id_people", "people", ["person_id"], ["id"])
        batch.create_index("ix_console_visits_person_id", ["person_id"])
        batch.create_index("ix_console_visits_provider_session", ["provider_session"])
    for name, length in (("actor_subject", 255), ("actor_email", 320)):
        op.add_column("audit_log", sa.Column(name, sa.String(length), nullable=True))
        op.create_index(f"ix_audit_log_{name}", "audit_log", [name])


def downgrade() -> None:
    for name in ("actor_email", "actor_subject"):
        op.drop_index(f"ix_audit_log_{name}", "audit_log")
        op.drop_column("audit_log", name)
    op.execute("DELETE FROM console_visits WHERE key_id IS NULL")
    with op.batch_alter_table("console_visits") as batch:
        batch.drop_index("ix_console_visits_provider_session")
        batch.drop_index("ix_console_visits_person_id")
        batch.drop_constraint("fk_console_visits_person_id_people", type_="foreignkey")
        for name in ("sealed_id_token", "provider_session", "idle_until", "idle_s", "person_id"):
            batch.drop_column(name)
        batch.alter_column("key_id", existing_type=sa.Uuid(), nullable=False)
    op.drop_table("spent_logins")
    op.drop_table("people")
