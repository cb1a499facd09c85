"""Keys record the pepper of their hash; webhooks keep their secret, sealed, so that it outlives the pepper."""

import sqlalchemy as sa
from alembic import op

from migrations.effects import Effects

revision = "0026"
down_revision = "0023"
branch_labels = None
depends_on = None
effects = Effects(locks=("api_keys", "webhooks"))


def upgrade() -> None:
    op.add_column("api_keys", sa.Column("pepper_id", sa.LargeBinary(8)))
    op.add_column("api_keys", sa.Column("previous_pepper_id", sa.LargeBinary(8)))
    op.add_column("webhooks", sa.Column("sealed_secret", sa.LargeBinary()))


def downgrade() -> None:
    op.drop_column("webhooks", "sealed_secret")
    op.drop_column("api_keys", "previous_pepper_id")
    op.drop_column("api_keys", "pepper_id")
