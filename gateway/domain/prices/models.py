from datetime import datetime

from sqlalchemy import BigInteger, Index, String
from sqlalchemy.orm import Mapped, mapped_column

from gateway.database import Base


class Price(Base):
    """Never changed: a new price is a new version, so that every old event can be priced again.

    `model_id` may be of a model that has been deleted.
    """

    __tablename__ = "prices"
    __table_args__ = (Index("ix_prices_model_id_valid_from", "model_id", "valid_from"),)

    version: Mapped[str] = mapped_column(String(64), primary_key=True)
    model_id: Mapped[str] = mapped_column(String(200))
    prompt_nanousd: Mapped[int] = mapped_column(BigInteger)
    cached_prompt_nanousd: Mapped[int] = mapped_column(BigInteger)
    completion_nanousd: Mapped[int] = mapped_column(BigInteger)
    valid_from: Mapped[datetime]
    created_at: Mapped[datetime]
