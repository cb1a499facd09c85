"""The price book's rows, never changed: a new price is a new version, so that every old event can be priced again."""

from datetime import datetime
from uuid import UUID

from sqlalchemy import BigInteger, Index, String
from sqlalchemy.orm import Mapped, mapped_column

from gateway.database import Base


class Price(Base):
    """The price of a model's tokens. `model_id` may name a model that has been deleted."""

    __tablename__ = "prices"
    __table_args__ = (Index("ix_prices_model_id_valid_from", "model_id", "valid_from"),)

    version: Mapped[str] = mapped_column(String(64), primary_key=True)
    model_id: Mapped[str] = mapped_column(String(200))
    prompt_nanousd: Mapped[int] = mapped_column(BigInteger)
    cached_prompt_nanousd: Mapped[int] = mapped_column(BigInteger)
    completion_nanousd: Mapped[int] = mapped_column(BigInteger)
    minimum_nanousd: Mapped[int] = mapped_column(BigInteger, server_default="0", default=0)
    """The least that a request costs, before a discount."""
    cached_answer_basis_points: Mapped[int] = mapped_column(server_default="0", default=0)
    """The share of the output's price that an answer from the cache costs."""
    valid_from: Mapped[datetime]
    created_at: Mapped[datetime]


class Surcharge(Base):
    """Charged for each token of prompt and answer that an adapter served; `adapter_id` None: any adapter."""

    __tablename__ = "adapter_surcharges"

    version: Mapped[str] = mapped_column(String(64), primary_key=True)
    model_id: Mapped[str] = mapped_column(String(200))
    adapter_id: Mapped[UUID | None]
    token_nanousd: Mapped[int] = mapped_column(BigInteger)
    valid_from: Mapped[datetime]
    created_at: Mapped[datetime]


class Discount(Base):
    """The discount of a tier's tenants or, for tier '', of batches, in basis points."""

    __tablename__ = "tier_discounts"

    version: Mapped[str] = mapped_column(String(64), primary_key=True)
    tier: Mapped[str] = mapped_column(String(64))
    basis_points: Mapped[int]
    valid_from: Mapped[datetime]
    created_at: Mapped[datetime]
