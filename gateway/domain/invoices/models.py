"""Billing tables. Final invoices never change: the triggers of revision 0007 refuse any change, whoever asks."""

from datetime import datetime
from uuid import UUID

from sqlalchemy import BigInteger, CheckConstraint, ForeignKey, Index, String, Text
from sqlalchemy.orm import Mapped, mapped_column, relationship

from gateway.database import Base
from gateway.domain.versions import Versioned


class BillingAccount(Versioned, Base):
    """How a tenant is billed. A tenant without a row is billed in UTC and without tax."""

    __tablename__ = "billing_accounts"

    tenant_id: Mapped[UUID] = mapped_column(ForeignKey("tenants.id"), primary_key=True)
    time_zone: Mapped[str] = mapped_column(String(64))
    tax_name: Mapped[str] = mapped_column(String(60))
    tax_basis_points: Mapped[int]
    recipient: Mapped[str] = mapped_column(Text)
    """Name and address as they appear on the invoice, in several lines."""


class Invoice(Base):
    """An invoice, or a credit note (`kind`) with negative amounts. Recipient, time zone and tax are copies."""

    __tablename__ = "invoices"
    __table_args__ = (
        CheckConstraint("kind IN ('invoice', 'credit_note')", name="kind"),
        CheckConstraint("(status = 'final') = (number IS NOT NULL) AND status IN ('draft', 'final')", name="status"),
        CheckConstraint("total_nanousd = subtotal_nanousd + tax_nanousd", name="total"),
        CheckConstraint("due_nanousd = total_nanousd - credit_nanousd", name="due"),
        Index("ix_invoices_tenant_id_period_start", "tenant_id", "period_start"),
    )

    id: Mapped[UUID] = mapped_column(primary_key=True)
    kind: Mapped[str] = mapped_column(String(16))
    status: Mapped[str] = mapped_column(String(16))
    number: Mapped[str | None] = mapped_column(String(32), unique=True)
    tenant_id: Mapped[UUID] = mapped_column(ForeignKey("tenants.id"))
    recipient: Mapped[str] = mapped_column(Text)
    time_zone: Mapped[str] = mapped_column(String(64))
    period_start: Mapped[datetime]
    period_end: Mapped[datetime]
    """Exclusive."""
    calculation_id: Mapped[UUID | None]
    """Names the rows of ClickHouse's `invoiced_events` that the lines sum up."""
    calculated_at: Mapped[datetime]
    num_final_before: Mapped[int]
    """The tenant's final invoices when this one was calculated; if there are more now, a draft must be recalculated."""
    tax_name: Mapped[str] = mapped_column(String(60))
    tax_basis_points: Mapped[int]
    subtotal_nanousd: Mapped[int] = mapped_column(BigInteger)
    tax_nanousd: Mapped[int] = mapped_column(BigInteger)
    total_nanousd: Mapped[int] = mapped_column(BigInteger)
    credit_nanousd: Mapped[int] = mapped_column(BigInteger)
    """The part of the total that is paid from the tenant's credit or, if negative, added to it."""
    due_nanousd: Mapped[int] = mapped_column(BigInteger)
    credited_invoice_id: Mapped[UUID | None] = mapped_column(ForeignKey("invoices.id"))
    """The invoice that a credit note takes back, in whole or in part."""
    created_at: Mapped[datetime]
    finalized_at: Mapped[datetime | None]
    lines: Mapped[list["InvoiceLine"]] = relationship(
        lazy="raise", cascade="all, delete-orphan", order_by="InvoiceLine.position", passive_deletes=True
    )


class InvoiceLine(Base):
    """One month's usage of a model, an adapter and a kind of token at one price; or a credit note's reason."""

    __tablename__ = "invoice_lines"

    invoice_id: Mapped[UUID] = mapped_column(ForeignKey("invoices.id", ondelete="CASCADE"), primary_key=True)
    position: Mapped[int] = mapped_column(primary_key=True)
    description: Mapped[str] = mapped_column(String(500))
    month: Mapped[str] = mapped_column(String(7))
    """The month of the usage, in the invoice's time zone: 2026-03."""
    is_adjustment: Mapped[bool]
    """Usage before the period that no invoice has billed, or that one billed differently."""
    model_id: Mapped[str] = mapped_column(String(300))
    adapter_id: Mapped[str] = mapped_column(String(64))
    kind: Mapped[str] = mapped_column(String(16))
    unit_price_nanousd: Mapped[int] = mapped_column(BigInteger)
    """0 where the price differs from request to request: minimums and discounts."""
    num_requests: Mapped[int] = mapped_column(BigInteger)
    quantity: Mapped[int] = mapped_column(BigInteger)
    amount_nanousd: Mapped[int] = mapped_column(BigInteger)


class CreditEntry(Base):
    """A tenant's prepaid credit is the sum of its entries, which are only ever added."""

    __tablename__ = "credit_entries"
    __table_args__ = (
        CheckConstraint("kind IN ('grant', 'invoice', 'credit_note')", name="kind"),
        Index("ix_credit_entries_tenant_id", "tenant_id"),
    )

    id: Mapped[UUID] = mapped_column(primary_key=True)
    tenant_id: Mapped[UUID] = mapped_column(ForeignKey("tenants.id"))
    at: Mapped[datetime]
    kind: Mapped[str] = mapped_column(String(16))
    amount_nanousd: Mapped[int] = mapped_column(BigInteger)
    invoice_id: Mapped[UUID | None] = mapped_column(ForeignKey("invoices.id"))
    note: Mapped[str] = mapped_column(String(500))
