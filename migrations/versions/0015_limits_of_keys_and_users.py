"""Add limits of tenants, keys and end users, restrictions and expiry of keys, and retired tiers."""

import sqlalchemy as sa
from alembic import op

from migrations.effects import Effects

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None
effects = Effects(locks=("api_keys", "tenants", "tiers"), rewrites=("api_keys",))

_AT = sa.DateTime(timezone=True)
_JSON = sa.JSON(none_as_null=True)
_KEYS = sa.table("api_keys", sa.column("id"), sa.column("scopes", sa.JSON()))
_CONTEXT_TOKENS = {"free": 32_768, "pro": 65_536, "enterprise": 131_072}


def upgrade() -> None:
    """Existing keys get the scope `usage`, so that they can still read what they could read before."""
    with op.batch_alter_table("tiers") as tiers:
        tiers.add_column(sa.Column("retired_at", _AT))
    with op.batch_alter_table("tenants") as tenants:
        tenants.add_column(sa.Column("limits", _JSON))
        tenants.add_column(sa.Column("user_limits", _JSON))
    with op.batch_alter_table("api_keys") as keys:
        for name in ("limits", "allowed_models", "allowed_networks"):
            keys.add_column(sa.Column(name, _JSON))
        for name in ("expires_at", "last_used_at", "previous_until"):
            keys.add_column(sa.Column(name, _AT))
        keys.add_column(sa.Column("previous_prefix", sa.String(8)))
        keys.add_column(sa.Column("previous_secret_hash", sa.LargeBinary(32)))
        keys.create_unique_constraint("uq_api_keys_previous_prefix", ["previous_prefix"])
    op.create_table(
        "end_users",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("tenant_id", sa.Uuid(), nullable=False),
        sa.Column("user_id", sa.String(512), nullable=False),
        sa.Column("limits", sa.JSON(), nullable=False),
        sa.Column("created_at", _AT, nullable=False),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name="fk_end_users_tenant_id_tenants"),
        sa.PrimaryKeyConstraint("id", name="pk_end_users"),
        sa.UniqueConstraint("tenant_id", "user_id", name="uq_end_users_tenant_id_user_id"),
    )
    _change_scopes(lambda scopes: [*scopes, "usage"] if "usage" not in scopes else scopes)
    # A value that an operator has set is kept.
    for tier, tokens in _CONTEXT_TOKENS.items():
        op.execute(f"UPDATE tiers SET context_tokens = {tokens} WHERE name = '{tier}' AND context_tokens IS NULL")


def downgrade() -> None:
    """Restricted keys are revoked, since the earlier version would not enforce their restrictions."""
    op.execute(
        "UPDATE api_keys SET revoked_at = CURRENT_TIMESTAMP WHERE revoked_at IS NULL AND "
        "(expires_at IS NOT NULL OR allowed_models IS NOT NULL OR allowed_networks IS NOT NULL)"
    )
    _change_scopes(lambda scopes: [scope for scope in scopes if scope != "usage"])
    op.drop_table("end_users")
    with op.batch_alter_table("api_keys") as keys:
        keys.drop_constraint("uq_api_keys_previous_prefix", type_="unique")
        for name in (
            "limits",
            "allowed_models",
            "allowed_networks",
            "expires_at",
            "last_used_at",
            "previous_until",
            "previous_prefix",
            "previous_secret_hash",
        ):
            keys.drop_column(name)
    with op.batch_alter_table("tenants") as tenants:
        tenants.drop_column("user_limits")
        tenants.drop_column("limits")
    with op.batch_alter_table("tiers") as tiers:
        tiers.drop_column("retired_at")


def _change_scopes(change) -> None:  # type: ignore[no-untyped-def]
    connection = op.get_bind()
    for key_id, scopes in connection.execute(sa.select(_KEYS.c.id, _KEYS.c.scopes)).all():
        connection.execute(_KEYS.update().where(_KEYS.c.id == key_id).values(scopes=change(scopes)))
