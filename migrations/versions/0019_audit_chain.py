"""Chain the audit log's rows. Existing rows enter the chain as they are, without a seal."""

import hashlib
import json
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa
from alembic import op

from migrations.effects import Effects

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None
effects = Effects(
    old_gateways="serve without changes",
    locks=("audit_log",),
    rewrites=("audit_log",),
    note="older gateways write audit rows without their place in the chain",
)

_CHUNK = 5000
_INDEXED = ("at", "action", "object_id")
_LOG = sa.table(
    "audit_log",
    sa.column("id", sa.Uuid()),
    sa.column("at", sa.DateTime(timezone=True)),
    sa.column("actor_key_id", sa.Uuid()),
    sa.column("tenant_id", sa.Uuid()),
    sa.column("action", sa.String()),
    sa.column("object_id", sa.String()),
    sa.column("detail", sa.JSON()),
    sa.column("position", sa.BigInteger()),
    sa.column("hash", sa.LargeBinary()),
)


def upgrade() -> None:
    with op.batch_alter_table("audit_log") as batch:
        batch.add_column(sa.Column("position", sa.BigInteger()))
        batch.add_column(sa.Column("request_id", sa.String(64)))
        batch.add_column(sa.Column("address", sa.String(64)))
        batch.add_column(sa.Column("before", sa.JSON()))
        batch.add_column(sa.Column("after", sa.JSON()))
        batch.add_column(sa.Column("hash", sa.LargeBinary(32)))
    num_rows, last = _chain()
    with op.batch_alter_table("audit_log") as batch:
        batch.alter_column("position", existing_type=sa.BigInteger(), nullable=False)
        batch.alter_column("hash", existing_type=sa.LargeBinary(32), nullable=False)
        batch.create_unique_constraint("uq_audit_log_position", ["position"])
        for column in _INDEXED:
            batch.create_index(f"ix_audit_log_{column}", [column])
    head = op.create_table(
        "audit_head",
        sa.Column("id", sa.Integer(), nullable=False, autoincrement=False),
        sa.Column("num_rows", sa.BigInteger(), nullable=False),
        sa.Column("hash", sa.LargeBinary(32), nullable=False),
        sa.Column("seal", sa.LargeBinary(32)),
        sa.PrimaryKeyConstraint("id", name="pk_audit_head"),
    )
    op.bulk_insert(head, [{"id": 1, "num_rows": num_rows, "hash": last, "seal": None}])


def downgrade() -> None:
    op.drop_table("audit_head")
    with op.batch_alter_table("audit_log") as batch:
        for column in _INDEXED:
            batch.drop_index(f"ix_audit_log_{column}")
        batch.drop_constraint("uq_audit_log_position", type_="unique")
        for name in ("position", "request_id", "address", "before", "after", "hash"):
            batch.drop_column(name)


def _chain() -> tuple[int, bytes]:
    """Chain all rows as gateway/domain/audit/chain.py did at this revision. Ids are in order of time."""
    connection = op.get_bind()
    columns = [_LOG.c[name] for name in ("id", "at", "actor_key_id", "tenant_id", "action", "object_id")]
    query = sa.select(*columns, sa.cast(_LOG.c.detail, sa.Text)).order_by(_LOG.c.id).limit(_CHUNK)
    rows = connection.execute(query).all()
    position, last = 0, bytes(32)
    while rows:
        chained = []
        for entry_id, at, *rest in rows:
            position += 1
            *middle, detail = rest
            content = [position, entry_id, _utc(at), *middle, None, None, detail, None, None]
            last = hashlib.sha256(last + json.dumps(content, default=str).encode()).digest()
            chained.append({"entry_id": entry_id, "new_position": position, "new_hash": last})
        change = sa.update(_LOG).where(_LOG.c.id == sa.bindparam("entry_id"))
        change = change.values(position=sa.bindparam("new_position"), hash=sa.bindparam("new_hash"))
        connection.execute(change, chained)
        rows = connection.execute(query.where(_LOG.c.id > rows[-1].id)).all()
    return position, last


def _utc(at: Any) -> str:
    assert isinstance(at, datetime)
    return (at if at.tzinfo else at.replace(tzinfo=UTC)).astimezone(UTC).isoformat()
