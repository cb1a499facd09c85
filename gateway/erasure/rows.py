"""Erasure in the relational database: every table whose rows have a tenant, or belong to rows that have one.

The schema tells which those are. A table that is added later is erased, too, unless it is named in KEPT.
"""

from collections.abc import Iterator
from typing import Any

from sqlalchemy import ColumnElement, Table, and_, delete, func, or_, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from gateway.clock import utc_now
from gateway.domain.invoices.models import BillingAccount, CreditEntry, Invoice, InvoiceLine
from gateway.domain.tables import Base
from gateway.domain.tenants.models import Tenant
from gateway.erasure.subject import Counts, Stores, Subject

KEPT = frozenset({"audit_log", "erasures", "invoices", "invoice_lines", "credit_entries", "billing_accounts"})
"""Audit rows are emptied (`audit_rows`); billing rows move to the pseudonym, to keep their sums."""
_TENANTS = "tenants"
GONE = "erased"


async def remove_rows(stores: Stores, subject: Subject) -> Counts:
    """Delete the subject's rows, in one transaction."""
    counts: Counts = {}
    async with stores.sessions.begin() as session:
        if subject.user is None and await session.get(Tenant, subject.tenant_id) is not None:
            counts |= await _hand_over_bills(session, subject)
        for table, which in _rows(subject):
            result: Any = await session.execute(delete(table).where(which))
            if result.rowcount:
                counts[table.name] = result.rowcount
    return counts


async def count_rows(stores: Stores, subject: Subject) -> int:
    """How many of the subject's rows are left."""
    num_rows = 0
    async with stores.sessions() as session:
        for table, which in _rows(subject):
            num_rows += await session.scalar(select(func.count()).select_from(table).where(which)) or 0
    return num_rows


def _rows(subject: Subject) -> Iterator[tuple[Table, ColumnElement[bool]]]:
    """Tables and the condition for the subject's rows, children before their parents."""
    for table in reversed(Base.metadata.sorted_tables):
        which = _of_user(table, subject) if subject.user is not None else _of_tenant(table, subject)
        if which is not None:
            yield table, which


def _of_user(table: Table, subject: Subject) -> ColumnElement[bool] | None:
    if table.name in KEPT or not {"tenant_id", "user_id"} <= set(table.columns.keys()):
        return None
    return and_(table.c.tenant_id == subject.tenant_id, table.c.user_id == subject.user)


def _of_tenant(table: Table, subject: Subject) -> ColumnElement[bool] | None:
    if table.name in KEPT:
        return None
    if table.name == _TENANTS:
        return table.c.id == subject.tenant_id
    found = [table.c.tenant_id == subject.tenant_id] if "tenant_id" in table.c else []
    for key in table.foreign_keys:
        parent = key.column.table
        if parent.name not in (_TENANTS, table.name) and (of_parent := _of_tenant(parent, subject)) is not None:
            found.append(key.parent.in_(select(key.column).where(of_parent)))
    return or_(*found) if found else None


async def _hand_over_bills(session: AsyncSession, subject: Subject) -> Counts:
    """Move invoices and credit, with their amounts but without their texts, to a tenant that nobody can identify."""
    tenant = await session.get(Tenant, subject.tenant_id)
    assert tenant is not None
    successor = Tenant(
        id=subject.pseudonym,
        name=f"{GONE}-{subject.pseudonym}",
        tier=tenant.tier,
        created_at=tenant.created_at.replace(hour=0, minute=0, second=0, microsecond=0),
        suspended_at=None,
        deleted_at=utc_now(),
    )
    session.add(successor)
    await session.flush()
    counts: Counts = {}
    no_words: dict[type[Base], dict[str, Any]] = {
        Invoice: {"recipient": GONE},
        CreditEntry: {"note": ""},
        BillingAccount: {"recipient": GONE},
    }
    notes = InvoiceLine.invoice_id.in_(
        select(Invoice.id).where(Invoice.tenant_id == subject.tenant_id, Invoice.kind == "credit_note")
    )
    await session.execute(
        update(InvoiceLine).where(notes).values(description=GONE).execution_options(synchronize_session=False)
    )
    for model, words in no_words.items():
        table = model.__table__
        assert isinstance(table, Table)
        change = update(table).where(table.c.tenant_id == subject.tenant_id)
        result: Any = await session.execute(change.values(tenant_id=subject.pseudonym, **words))
        if result.rowcount:
            counts[f"{table.name}_kept"] = result.rowcount
    return counts
