"""Seed the three tiers. An operator changes them with PATCH /admin/v1/tiers/{name}."""

import sqlalchemy as sa
from alembic import op

from migrations.effects import Effects

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None
effects = Effects()

_TIERS = sa.table(
    "tiers",
    sa.column("name", sa.String()),
    *(
        sa.column(name, sa.BigInteger())
        for name in (
            "requests_per_minute",
            "tokens_per_minute",
            "concurrency",
            "tokens_per_day",
            "budget_nanousd_per_month",
            "context_tokens",
            "default_max_tokens",
            "max_adapters",
            "priority",
        )
    ),
    sa.column("large_share", sa.Double()),
    sa.column("weight", sa.Double()),
    sa.column("on_saturation", sa.String()),
    sa.column("complexity_threshold", sa.Double()),
    sa.column("allowed_pools", sa.JSON(none_as_null=True)),
    sa.column("is_best_effort", sa.Boolean()),
)

_COMMON = {
    "budget_nanousd_per_month": None,
    "context_tokens": None,
    "large_share": None,
    "on_saturation": "fallback",
    "allowed_pools": None,
}
_SEEDS = (
    {
        "name": "free",
        "requests_per_minute": 60,
        "tokens_per_minute": 40_000,
        "concurrency": 4,
        "tokens_per_day": 1_000_000,
        "default_max_tokens": 256,
        "max_adapters": 1,
        "priority": 2,
        "weight": 1.0,
        "complexity_threshold": 0.5,
        "is_best_effort": True,
    },
    {
        "name": "pro",
        "requests_per_minute": 600,
        "tokens_per_minute": 400_000,
        "concurrency": 32,
        "tokens_per_day": 50_000_000,
        "default_max_tokens": 1024,
        "max_adapters": 10,
        "priority": 1,
        "weight": 2.0,
        "complexity_threshold": 0.4,
        "is_best_effort": False,
    },
    {
        "name": "enterprise",
        "requests_per_minute": 12_000,
        "tokens_per_minute": 20_000_000,
        "concurrency": 512,
        "tokens_per_day": None,
        "default_max_tokens": 1024,
        "max_adapters": None,
        "priority": 0,
        "weight": 4.0,
        "complexity_threshold": 0.35,
        "is_best_effort": False,
    },
)


def upgrade() -> None:
    op.bulk_insert(_TIERS, [_COMMON | seed for seed in _SEEDS])


def downgrade() -> None:
    """Keeps the tiers: tenants may have them, and an operator may have changed them."""
