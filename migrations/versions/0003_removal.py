"""Mark the platform's own tenant, let tenants and models be removed, and add the locks that keep names unique."""

import sqlalchemy as sa
from alembic import op

from migrations.effects import Effects

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None
effects = Effects(locks=("prices", "tenants"))

_IS_LIVE = sa.text("deleted_at IS NULL")


def upgrade() -> None:
    locks = op.create_table(
        "locks",
        sa.Column("name", sa.String(32), nullable=False),
        sa.Column("turn", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_locks"),
    )
    op.bulk_insert(locks, [{"name": name, "turn": 0} for name in ("names", "admins")])
    with op.batch_alter_table("tenants") as tenants:
        tenants.add_column(sa.Column("is_platform", sa.Boolean(), nullable=False, server_default=sa.false()))
        tenants.add_column(sa.Column("deleted_at", sa.DateTime(timezone=True)))
        # The name of a deleted tenant can be used again.
        tenants.drop_constraint("uq_tenants_name", type_="unique")
        tenants.create_index(
            "ux_tenants_live_name", ["name"], unique=True, sqlite_where=_IS_LIVE, postgresql_where=_IS_LIVE
        )
    # The platform's tenant is found by the audit log, since it may have been renamed.
    op.execute(
        "UPDATE tenants SET is_platform = TRUE WHERE id IN "
        "(SELECT tenant_id FROM audit_log WHERE action = 'key.bootstrap')"
    )
    with op.batch_alter_table("prices") as prices:
        # A price remains when its model is deleted, since past usage was priced with it.
        prices.drop_constraint("fk_prices_model_id_models", type_="foreignkey")


def downgrade() -> None:
    """Prices of deleted models are removed and deleted tenants renamed, as the first version's constraints require."""
    op.execute("DELETE FROM prices WHERE model_id NOT IN (SELECT id FROM models)")
    with op.batch_alter_table("prices") as prices:
        prices.create_foreign_key("fk_prices_model_id_models", "models", ["model_id"], ["id"])
    op.execute(
        "UPDATE tenants SET name = substr(name, 1, 70) || ' (deleted ' || CAST(id AS VARCHAR(36)) || ')' "
        "WHERE deleted_at IS NOT NULL"
    )
    with op.batch_alter_table("tenants") as tenants:
        tenants.drop_index("ux_tenants_live_name")
        tenants.create_unique_constraint("uq_tenants_name", ["name"])
        tenants.drop_column("deleted_at")
        tenants.drop_column("is_platform")
    op.drop_table("locks")
