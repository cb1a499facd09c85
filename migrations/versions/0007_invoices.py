"""Add invoices, their lines, prepaid credit and billing accounts, and triggers that keep final rows unchanged."""

import sqlalchemy as sa
from alembic import op

from migrations.effects import Effects

revision = "0007"
down_revision = "0005"
branch_labels = None
depends_on = None
effects = Effects()

_AT = sa.DateTime(timezone=True)
_IS_FINAL = "(SELECT status FROM invoices WHERE id = {row}.invoice_id) = 'final'"
_RULES = (
    # (table, change, condition under which the change is refused)
    ("invoices", "UPDATE", "OLD.status = 'final'"),
    ("invoices", "DELETE", "OLD.status = 'final'"),
    ("invoice_lines", "INSERT", _IS_FINAL.format(row="NEW")),
    ("invoice_lines", "UPDATE", f"{_IS_FINAL.format(row='OLD')} OR {_IS_FINAL.format(row='NEW')}"),
    ("invoice_lines", "DELETE", _IS_FINAL.format(row="OLD")),
    ("credit_entries", "UPDATE", "TRUE"),
    ("credit_entries", "DELETE", "TRUE"),
)
_REFUSAL = "final invoices and credit entries never change"


def upgrade() -> None:
    op.bulk_insert(sa.table("locks", sa.column("name"), sa.column("turn")), [{"name": "billing", "turn": 0}])
    op.create_table(
        "billing_accounts",
        sa.Column("tenant_id", sa.Uuid(), nullable=False),
        sa.Column("time_zone", sa.String(64), nullable=False),
        sa.Column("tax_name", sa.String(60), nullable=False),
        sa.Column("tax_basis_points", sa.Integer(), nullable=False),
        sa.Column("recipient", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name="fk_billing_accounts_tenant_id_tenants"),
        sa.PrimaryKeyConstraint("tenant_id", name="pk_billing_accounts"),
    )
    _create_invoices()
    _create_lines()
    op.create_table(
        "credit_entries",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("tenant_id", sa.Uuid(), nullable=False),
        sa.Column("at", _AT, nullable=False),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("amount_nanousd", sa.BigInteger(), nullable=False),
        sa.Column("invoice_id", sa.Uuid()),
        sa.Column("note", sa.String(500), nullable=False),
        sa.CheckConstraint("kind IN ('grant', 'invoice', 'credit_note')", name="ck_credit_entries_kind"),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name="fk_credit_entries_tenant_id_tenants"),
        sa.ForeignKeyConstraint(["invoice_id"], ["invoices.id"], name="fk_credit_entries_invoice_id_invoices"),
        sa.PrimaryKeyConstraint("id", name="pk_credit_entries"),
    )
    op.create_index("ix_credit_entries_tenant_id", "credit_entries", ["tenant_id"])
    _create_triggers()


def downgrade() -> None:
    if op.get_bind().dialect.name == "postgresql":
        for table in ("invoices", "invoice_lines", "credit_entries"):
            op.execute(f"DROP TRIGGER {table}_no_truncate ON {table}")
        for table, change, when in _RULES:
            op.execute(f"DROP TRIGGER {_name(table, change)} ON {table}")
            if "SELECT" in when:
                op.execute(f"DROP FUNCTION {_name(table, change)}()")
        op.execute("DROP FUNCTION refuse_change_of_billing()")
    for table in ("credit_entries", "invoice_lines", "invoices", "billing_accounts"):
        op.drop_table(table)
    op.execute("DELETE FROM locks WHERE name = 'billing'")


def _create_invoices() -> None:
    op.create_table(
        "invoices",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("number", sa.String(32)),
        sa.Column("tenant_id", sa.Uuid(), nullable=False),
        sa.Column("recipient", sa.Text(), nullable=False),
        sa.Column("time_zone", sa.String(64), nullable=False),
        sa.Column("period_start", _AT, nullable=False),
        sa.Column("period_end", _AT, nullable=False),
        sa.Column("calculation_id", sa.Uuid()),
        sa.Column("calculated_at", _AT, nullable=False),
        sa.Column("num_final_before", sa.Integer(), nullable=False),
        sa.Column("tax_name", sa.String(60), nullable=False),
        sa.Column("tax_basis_points", sa.Integer(), nullable=False),
        *(
            sa.Column(f"{name}_nanousd", sa.BigInteger(), nullable=False)
            for name in ("subtotal", "tax", "total", "credit", "due")
        ),
        sa.Column("credited_invoice_id", sa.Uuid()),
        sa.Column("created_at", _AT, nullable=False),
        sa.Column("finalized_at", _AT),
        sa.CheckConstraint("kind IN ('invoice', 'credit_note')", name="ck_invoices_kind"),
        sa.CheckConstraint(
            "(status = 'final') = (number IS NOT NULL) AND status IN ('draft', 'final')", name="ck_invoices_status"
        ),
        sa.CheckConstraint("total_nanousd = subtotal_nanousd + tax_nanousd", name="ck_invoices_total"),
        sa.CheckConstraint("due_nanousd = total_nanousd - credit_nanousd", name="ck_invoices_due"),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name="fk_invoices_tenant_id_tenants"),
        sa.ForeignKeyConstraint(
            ["credited_invoice_id"], ["invoices.id"], name="fk_invoices_credited_invoice_id_invoices"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_invoices"),
        sa.UniqueConstraint("number", name="uq_invoices_number"),
    )
    op.create_index("ix_invoices_tenant_id_period_start", "invoices", ["tenant_id", "period_start"])


def _create_lines() -> None:
    op.create_table(
        "invoice_lines",
        sa.Column("invoice_id", sa.Uuid(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("description", sa.String(500), nullable=False),
        sa.Column("month", sa.String(7), nullable=False),
        sa.Column("is_adjustment", sa.Boolean(), nullable=False),
        sa.Column("model_id", sa.String(300), nullable=False),
        sa.Column("adapter_id", sa.String(64), nullable=False),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("unit_price_nanousd", sa.BigInteger(), nullable=False),
        sa.Column("num_requests", sa.BigInteger(), nullable=False),
        sa.Column("quantity", sa.BigInteger(), nullable=False),
        sa.Column("amount_nanousd", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["invoice_id"], ["invoices.id"], name="fk_invoice_lines_invoice_id_invoices", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("invoice_id", "position", name="pk_invoice_lines"),
    )


def _create_triggers() -> None:
    if op.get_bind().dialect.name == "sqlite":
        for table, change, when in _RULES:
            op.execute(
                f"CREATE TRIGGER {_name(table, change)} BEFORE {change} ON {table} WHEN {when} "
                f"BEGIN SELECT RAISE(ABORT, '{_REFUSAL}'); END"
            )
        return
    op.execute(
        "CREATE FUNCTION refuse_change_of_billing() RETURNS trigger LANGUAGE plpgsql AS "
        f"$$ BEGIN RAISE EXCEPTION '{_REFUSAL}' USING ERRCODE = 'integrity_constraint_violation'; END $$"
    )
    for table, change, when in _RULES:
        if "SELECT" not in when:
            op.execute(
                f"CREATE TRIGGER {_name(table, change)} BEFORE {change} ON {table} FOR EACH ROW WHEN ({when}) "
                "EXECUTE FUNCTION refuse_change_of_billing()"
            )
            continue
        # The condition of a trigger cannot query another table, but its function can.
        result = "OLD" if change == "DELETE" else "NEW"
        op.execute(
            f"CREATE FUNCTION {_name(table, change)}() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
            f"IF {when} THEN RAISE EXCEPTION '{_REFUSAL}' USING ERRCODE = 'integrity_constraint_violation'; END IF; "
            f"RETURN {result}; END $$"
        )
        op.execute(
            f"CREATE TRIGGER {_name(table, change)} BEFORE {change} ON {table} FOR EACH ROW "
            f"EXECUTE FUNCTION {_name(table, change)}()"
        )
    for table in ("invoices", "invoice_lines", "credit_entries"):
        op.execute(
            f"CREATE TRIGGER {table}_no_truncate BEFORE TRUNCATE ON {table} "
            "FOR EACH STATEMENT EXECUTE FUNCTION refuse_change_of_billing()"
        )


def _name(table: str, change: str) -> str:
    return f"{table}_no_{change.lower()}"
