from datetime import datetime
from typing import Any, Literal
from uuid import UUID

from sqlalchemy import JSON, BigInteger, ForeignKey, Index, Integer, LargeBinary, String
from sqlalchemy.orm import Mapped, mapped_column

from gateway.database import Base

BatchStatus = Literal[
    "validating", "in_progress", "finalizing", "completed", "failed", "cancelling", "cancelled", "expired"
]
LIVE = ("validating", "in_progress", "finalizing", "cancelling")


class Batch(Base):
    """The gateway process that `holder` names runs the batch, until `held_until`."""

    __tablename__ = "batches"
    __table_args__ = (Index("ix_batches_tenant_id", "tenant_id"), Index("ix_batches_status", "status"))

    id: Mapped[UUID] = mapped_column(primary_key=True)
    tenant_id: Mapped[UUID] = mapped_column(ForeignKey("tenants.id"))
    key_id: Mapped[UUID] = mapped_column(ForeignKey("api_keys.id"))
    """The key in whose name the batch's requests are made."""
    endpoint: Mapped[str] = mapped_column(String(64))
    input_file_id: Mapped[UUID]
    completion_window: Mapped[str] = mapped_column(String(8))
    notes: Mapped[dict[str, str] | None] = mapped_column("metadata", JSON)
    output_lasts_s: Mapped[int] = mapped_column(BigInteger)
    """How long the batch's output files are kept."""
    status: Mapped[str] = mapped_column(String(16))
    model: Mapped[str | None] = mapped_column(String(200))
    errors: Mapped[list[dict[str, Any]] | None] = mapped_column(JSON)
    num_lines: Mapped[int]
    num_completed: Mapped[int]
    num_failed: Mapped[int]
    output_file_id: Mapped[UUID | None]
    error_file_id: Mapped[UUID | None]
    created_at: Mapped[datetime]
    expires_at: Mapped[datetime]
    in_progress_at: Mapped[datetime | None]
    finalizing_at: Mapped[datetime | None]
    completed_at: Mapped[datetime | None]
    failed_at: Mapped[datetime | None]
    expired_at: Mapped[datetime | None]
    cancelling_at: Mapped[datetime | None]
    cancelled_at: Mapped[datetime | None]
    holder: Mapped[str] = mapped_column(String(64))
    held_until: Mapped[datetime]


class BatchResult(Base):
    """The result of one line, kept until the batch's files exist. A line has one result, whichever process ran it."""

    __tablename__ = "batch_results"

    batch_id: Mapped[UUID] = mapped_column(ForeignKey("batches.id", ondelete="CASCADE"), primary_key=True)
    line: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    """The line number in the input, from 1."""
    is_ok: Mapped[bool]
    content: Mapped[bytes] = mapped_column(LargeBinary)
    """The result as a line of the output or the error file."""
    event: Mapped[bytes | None] = mapped_column(LargeBinary)
    """The usage event that bills the line, as JSON, until an outbox has it."""
