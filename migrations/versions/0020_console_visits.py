"""Add console visits, which can be ended from elsewhere. Everybody has to log in to the console again."""

import sqlalchemy as sa
from alembic import op

from migrations.effects import Effects

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None
effects = Effects(note="whoever is logged in to the console logs in once more")

_AT = sa.DateTime(timezone=True)


def upgrade() -> None:
    op.create_table(
        "console_visits",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("key_id", sa.Uuid(), nullable=False),
        sa.Column("began_at", _AT, nullable=False),
        sa.Column("expires_at", _AT, nullable=False),
        sa.Column("address", sa.String(64), nullable=False),
        sa.Column("browser", sa.String(200), nullable=False),
        sa.ForeignKeyConstraint(["key_id"], ["api_keys.id"], name="fk_console_visits_key_id_api_keys"),
        sa.PrimaryKeyConstraint("id", name="pk_console_visits"),
    )
    op.create_index("ix_console_visits_key_id", "console_visits", ["key_id"])
    op.create_index("ix_console_visits_expires_at", "console_visits", ["expires_at"])


def downgrade() -> None:
    op.drop_table("console_visits")
