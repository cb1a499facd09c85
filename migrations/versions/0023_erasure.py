"""Contents of audit rows can be erased, since new rows have a salted hash of them. Add erasures, as durable jobs."""

import sqlalchemy as sa
from alembic import op

from migrations.effects import Effects

revision = "0023"
down_revision = "0021"
branch_labels = None
depends_on = None
effects = Effects(locks=("audit_log",))

_INVOICE = (
    *("id", "kind", "status", "number", "time_zone", "period_start", "period_end", "calculation_id", "calculated_at"),
    *("num_final_before", "tax_name", "tax_basis_points", "subtotal_nanousd", "tax_nanousd", "total_nanousd"),
    *("credit_nanousd", "due_nanousd", "credited_invoice_id", "created_at", "finalized_at"),
)
_LINE = (
    *("invoice_id", "position", "month", "is_adjustment", "model_id", "adapter_id", "kind", "unit_price_nanousd"),
    *("num_requests", "quantity", "amount_nanousd"),
)
_CREDIT = ("id", "at", "kind", "amount_nanousd", "invoice_id")
_OF_ERASURE = "EXISTS (SELECT 1 FROM erasures AS e WHERE e.tenant_id = OLD.tenant_id AND e.pseudonym = NEW.tenant_id)"
_OF_FINAL = """EXISTS (SELECT 1 FROM invoices AS i
WHERE i.id IN (OLD.invoice_id, NEW.invoice_id) AND i.status = 'final')"""
_OF_ERASED = """EXISTS (SELECT 1 FROM invoices AS i JOIN erasures AS e ON e.tenant_id = i.tenant_id
WHERE i.id = OLD.invoice_id AND e.pseudonym IS NOT NULL)"""
_RULES = (
    ("invoices", "OLD.status = 'final'", _INVOICE, f"NEW.recipient = 'erased' AND {_OF_ERASURE}"),
    ("invoice_lines", _OF_FINAL, _LINE, f"NEW.description = 'erased' AND {_OF_ERASED}"),
    ("credit_entries", "TRUE", _CREDIT, f"NEW.note = '' AND {_OF_ERASURE}"),
)
"""(table, condition under which a row must not be changed, columns that even an erasure must not change, condition
under which an erasure may change the others)"""
_REFUSAL = "final invoices and credit entries never change"


def upgrade() -> None:
    op.add_column("audit_log", sa.Column("salt", sa.LargeBinary(16)))
    op.add_column("audit_log", sa.Column("contents_hash", sa.LargeBinary(32)))
    op.add_column("audit_log", sa.Column("is_erased", sa.Boolean(), nullable=False, server_default=sa.false()))
    op.create_table(
        "erasures",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("tenant_id", sa.Uuid(), nullable=False),
        sa.Column("sealed_user", sa.LargeBinary()),
        sa.Column("is_of_user", sa.Boolean(), nullable=False),
        sa.Column("pseudonym", sa.Uuid()),
        sa.Column("salt", sa.LargeBinary(32)),
        sa.Column("requested_by", sa.Uuid()),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("finished_at", sa.DateTime(timezone=True)),
        sa.Column("looked_again_at", sa.DateTime(timezone=True)),
        sa.Column("waits_for", sa.String(400)),
        sa.Column("progress", sa.JSON(), nullable=False),
        sa.Column("steps", sa.JSON(), nullable=False),
        sa.Column("sha256", sa.String(64)),
        sa.Column("seal", sa.LargeBinary(32)),
        sa.PrimaryKeyConstraint("id", name="pk_erasures"),
    )
    op.create_index("ix_erasures_tenant_id", "erasures", ["tenant_id"])
    op.create_index("ix_erasures_finished_at", "erasures", ["finished_at"])
    op.execute("INSERT INTO leases (name, holder, until) VALUES ('erasures', '', '2000-01-01 00:00:00.000000')")
    _refuse_changes(but_of_erasures=True)


def downgrade() -> None:
    _refuse_changes(but_of_erasures=False)
    op.execute("DELETE FROM leases WHERE name = 'erasures'")
    op.drop_table("erasures")
    # Rows written since the upgrade no longer verify.
    for name in ("is_erased", "contents_hash", "salt"):
        op.drop_column("audit_log", name)


def _refuse_changes(*, but_of_erasures: bool) -> None:
    """Replace the triggers of revision 0007 that refuse updates."""
    is_sqlite = op.get_bind().dialect.name == "sqlite"
    same = "IS" if is_sqlite else "IS NOT DISTINCT FROM"
    for table, fixed, columns, allowed in _RULES:
        name = f"{table}_no_update"
        unchanged = " AND ".join(f"NEW.{column} {same} OLD.{column}" for column in columns)
        when = f"{fixed} AND NOT ({unchanged} AND {allowed})" if but_of_erasures else fixed
        if is_sqlite:
            op.execute(f"DROP TRIGGER {name}")
            refuse = f"BEGIN SELECT RAISE(ABORT, '{_REFUSAL}'); END"
            op.execute(f"CREATE TRIGGER {name} BEFORE UPDATE ON {table} WHEN {when} {refuse}")
            continue
        op.execute(f"DROP TRIGGER {name} ON {table}")
        function = name
        if but_of_erasures or table == "invoice_lines":
            op.execute(
                f"CREATE OR REPLACE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
                f"IF {when} THEN RAISE EXCEPTION '{_REFUSAL}' USING ERRCODE = 'integrity_constraint_violation'; "
                "END IF; RETURN NEW; END $$"
            )
            condition = ""
        else:
            op.execute(f"DROP FUNCTION {name}()")
            function, condition = "refuse_change_of_billing", f"WHEN ({when})"
        op.execute(
            f"CREATE TRIGGER {name} BEFORE UPDATE ON {table} FOR EACH ROW {condition} EXECUTE FUNCTION {function}()"
        )
