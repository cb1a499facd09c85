"""Every column that holds a secret sealed under a pepper; a test finds columns that are missing here."""

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, NamedTuple
from uuid import UUID

from sqlalchemy import ColumnElement, Select, select
from sqlalchemy.ext.asyncio import AsyncSession

from gateway.database import Base
from gateway.domain.erasures import names
from gateway.domain.erasures.models import Erasure
from gateway.domain.guardrails import terms as guardrails
from gateway.domain.guardrails.models import Guardrail
from gateway.domain.people import service as people
from gateway.domain.sealing import CannotUnseal, unseal_with
from gateway.domain.sessions import terms
from gateway.domain.sessions.models import SessionPolicy
from gateway.domain.tools import sealing as tools
from gateway.domain.tools.models import ServerTool
from gateway.domain.visits.models import Visit
from gateway.domain.webhooks import secrets as webhooks
from gateway.domain.webhooks.models import Webhook
from gateway.peppers import Peppers

_CHUNK = 500


class SealedColumn(NamedTuple):
    name: str
    table: type[Base]
    key: ColumnElement[Any]
    """The primary key."""
    column: ColumnElement[Any]
    purpose: bytes
    bound_to: Callable[[Sequence[Any]], bytes]
    also: tuple[ColumnElement[Any], ...] = ()
    """Columns that `bound_to` needs besides the key."""


def _bound_to_key(row: Sequence[Any]) -> bytes:
    key: UUID = row[0]
    return key.bytes


def _bound_to_guardrail(row: Sequence[Any]) -> bytes:
    return guardrails.bound_to(row[0], row[2])


def _bound_to_tool(row: Sequence[Any]) -> bytes:
    return tools.bound_to(row[0], row[2])


def _column(name: str, table: type[Base], key: str, column: str, purpose: bytes) -> SealedColumn:
    columns = table.__table__.c
    return SealedColumn(name, table, columns[key], columns[column], purpose, _bound_to_key)


SEALED = (
    _column("webhooks", Webhook, "id", "sealed_secret", webhooks.PURPOSE),
    _column("tools", ServerTool, "id", "sealed_credential", tools.PURPOSE)._replace(
        bound_to=_bound_to_tool, also=(ServerTool.__table__.c.url,)
    ),
    _column("ID tokens", Visit, "id", "sealed_id_token", people.PURPOSE),
    _column("erased users", Erasure, "id", "sealed_user", names.PURPOSE),
    _column("guardrails", Guardrail, "id", "sealed_authorization", guardrails.PURPOSE)._replace(
        bound_to=_bound_to_guardrail, also=(Guardrail.__table__.c.url,)
    ),
    _column("session keys", SessionPolicy, "tenant_id", "sealed_key", terms.PURPOSE),
)


class Found(NamedTuple):
    key: Any
    sealed: bytes
    bound_to: bytes
    opened: tuple[bytes, str] | None
    """The secret and the pepper that it is sealed under; None: it cannot be unsealed."""


async def sealed_rows(session: AsyncSession, each: SealedColumn, peppers: Peppers) -> AsyncIterator[Found]:
    """Rows in key order, read in separate chunks, so that the caller may write each row as soon as it is yielded."""
    columns: Select[Any] = select(each.key, each.column, *each.also).where(each.column.is_not(None)).order_by(each.key)
    query = columns.limit(_CHUNK)
    while rows := (await session.execute(query)).all():
        for row in rows:
            bound_to = each.bound_to(tuple(row))
            try:
                opened = unseal_with(row[1], purpose=each.purpose, bound_to=bound_to, peppers=peppers)
            except CannotUnseal:
                opened = None
            yield Found(row[0], row[1], bound_to, opened)
        query = columns.where(each.key > rows[-1][0]).limit(_CHUNK)
