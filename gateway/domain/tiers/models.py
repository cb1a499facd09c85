from datetime import datetime

from sqlalchemy import JSON, BigInteger, String
from sqlalchemy.orm import Mapped, mapped_column

from gateway.database import Base
from gateway.domain.versions import Versioned


class Tier(Versioned, Base):
    """Each tenant of the tier has these limits to itself; None: no limit."""

    __tablename__ = "tiers"

    name: Mapped[str] = mapped_column(String(64), primary_key=True)
    requests_per_minute: Mapped[int | None]
    tokens_per_minute: Mapped[int | None] = mapped_column(BigInteger)
    concurrency: Mapped[int | None]
    tokens_per_day: Mapped[int | None] = mapped_column(BigInteger)
    budget_nanousd_per_month: Mapped[int | None] = mapped_column(BigInteger)
    context_tokens: Mapped[int | None]
    default_max_tokens: Mapped[int]
    max_adapters: Mapped[int | None]
    large_share: Mapped[float | None]
    priority: Mapped[int]
    weight: Mapped[float]
    on_saturation: Mapped[str] = mapped_column(String(16))
    complexity_threshold: Mapped[float]
    uncertain_threshold: Mapped[float | None]
    ttft_target_ms: Mapped[int | None]
    is_hedged: Mapped[bool]
    allowed_pools: Mapped[list[str] | None] = mapped_column(JSON(none_as_null=True))
    is_best_effort: Mapped[bool]
    retired_at: Mapped[datetime | None]
    """Since when no tenant may move to the tier; tenants that have it keep it."""
