"""Create the platform's tables."""

import sqlalchemy as sa
from alembic import op

from migrations.effects import Effects

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None
effects = Effects()

_AT = sa.DateTime(timezone=True)


def upgrade() -> None:
    _create_tiers()
    _create_tenants_and_keys()
    _create_models_and_prices()
    _create_adapters()
    _create_audit_log()


def downgrade() -> None:
    for table in ("audit_log", "adapter_variants", "adapters", "prices", "models", "api_keys", "tenants", "tiers"):
        op.drop_table(table)


def _create_tiers() -> None:
    op.create_table(
        "tiers",
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("requests_per_minute", sa.Integer()),
        sa.Column("tokens_per_minute", sa.BigInteger()),
        sa.Column("concurrency", sa.Integer()),
        sa.Column("tokens_per_day", sa.BigInteger()),
        sa.Column("budget_nanousd_per_month", sa.BigInteger()),
        sa.Column("context_tokens", sa.Integer()),
        sa.Column("default_max_tokens", sa.Integer(), nullable=False),
        sa.Column("max_adapters", sa.Integer()),
        sa.Column("large_share", sa.Double()),
        sa.Column("priority", sa.Integer(), nullable=False),
        sa.Column("weight", sa.Double(), nullable=False),
        sa.Column("on_saturation", sa.String(16), nullable=False),
        sa.Column("complexity_threshold", sa.Double(), nullable=False),
        sa.Column("allowed_pools", sa.JSON(none_as_null=True)),
        sa.Column("is_best_effort", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_tiers"),
    )


def _create_tenants_and_keys() -> None:
    op.create_table(
        "tenants",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("name", sa.String(120), nullable=False),
        sa.Column("tier", sa.String(64), nullable=False),
        sa.Column("created_at", _AT, nullable=False),
        sa.Column("suspended_at", _AT),
        sa.ForeignKeyConstraint(["tier"], ["tiers.name"], name="fk_tenants_tier_tiers"),
        sa.PrimaryKeyConstraint("id", name="pk_tenants"),
        sa.UniqueConstraint("name", name="uq_tenants_name"),
    )
    op.create_table(
        "api_keys",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("tenant_id", sa.Uuid(), nullable=False),
        sa.Column("name", sa.String(120), nullable=False),
        sa.Column("prefix", sa.String(8), nullable=False),
        sa.Column("secret_hash", sa.LargeBinary(32), nullable=False),
        sa.Column("scopes", sa.JSON(), nullable=False),
        sa.Column("created_at", _AT, nullable=False),
        sa.Column("revoked_at", _AT),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name="fk_api_keys_tenant_id_tenants"),
        sa.PrimaryKeyConstraint("id", name="pk_api_keys"),
        sa.UniqueConstraint("prefix", name="uq_api_keys_prefix"),
    )
    op.create_index("ix_api_keys_tenant_id", "api_keys", ["tenant_id"])


def _create_models_and_prices() -> None:
    op.create_table(
        "models",
        sa.Column("id", sa.String(200), nullable=False),
        sa.Column("pool", sa.String(64), nullable=False),
        sa.Column("context_window", sa.Integer(), nullable=False),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("created_at", _AT, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_models"),
        sa.UniqueConstraint("pool", name="uq_models_pool"),
    )
    op.create_table(
        "prices",
        sa.Column("version", sa.String(64), nullable=False),
        sa.Column("model_id", sa.String(200), nullable=False),
        sa.Column("prompt_nanousd", sa.BigInteger(), nullable=False),
        sa.Column("cached_prompt_nanousd", sa.BigInteger(), nullable=False),
        sa.Column("completion_nanousd", sa.BigInteger(), nullable=False),
        sa.Column("valid_from", _AT, nullable=False),
        sa.Column("created_at", _AT, nullable=False),
        sa.ForeignKeyConstraint(["model_id"], ["models.id"], name="fk_prices_model_id_models"),
        sa.PrimaryKeyConstraint("version", name="pk_prices"),
    )
    op.create_index("ix_prices_model_id_valid_from", "prices", ["model_id", "valid_from"])


def _create_adapters() -> None:
    op.create_table(
        "adapters",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("tenant_id", sa.Uuid()),
        sa.Column("name", sa.String(120), nullable=False),
        sa.Column("created_at", _AT, nullable=False),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name="fk_adapters_tenant_id_tenants"),
        sa.PrimaryKeyConstraint("id", name="pk_adapters"),
        sa.UniqueConstraint("tenant_id", "name", name="uq_adapters_tenant_id_name"),
    )
    is_public = sa.text("tenant_id IS NULL")
    op.create_index(
        "ux_adapters_public_name",
        "adapters",
        ["name"],
        unique=True,
        sqlite_where=is_public,
        postgresql_where=is_public,
    )
    op.create_table(
        "adapter_variants",
        sa.Column("adapter_id", sa.Uuid(), nullable=False),
        sa.Column("model_id", sa.String(200), nullable=False),
        sa.Column("worker_name", sa.String(200), nullable=False),
        sa.ForeignKeyConstraint(
            ["adapter_id"], ["adapters.id"], name="fk_adapter_variants_adapter_id_adapters", ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(["model_id"], ["models.id"], name="fk_adapter_variants_model_id_models"),
        sa.PrimaryKeyConstraint("adapter_id", "model_id", name="pk_adapter_variants"),
    )


def _create_audit_log() -> None:
    op.create_table(
        "audit_log",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("at", _AT, nullable=False),
        sa.Column("actor_key_id", sa.Uuid()),
        sa.Column("tenant_id", sa.Uuid()),
        sa.Column("action", sa.String(64), nullable=False),
        sa.Column("object_id", sa.String(200), nullable=False),
        sa.Column("detail", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_audit_log"),
    )
    op.create_index("ix_audit_log_tenant_id", "audit_log", ["tenant_id"])
