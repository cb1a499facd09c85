"""Tools in the database, on SQLite and on PostgreSQL; their secrets; and which arguments keep a schema."""

import asyncio
import sqlite3
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from sqlalchemy.ext.asyncio import AsyncSession

from gateway.database import Sessions, open_sessions
from gateway.domain.principal import Principal
from gateway.domain.tenants.service import create_tenant
from gateway.domain.tools.schemas import check_schema, problem_with
from gateway.domain.tools.sealing import CannotUnseal, seal, unseal
from gateway.domain.tools.service import change_tool, create_tool, delete_tool
from gateway.domain.tools.tool_book import ToolBook
from gateway.http.errors import Conflict, InvalidRequest, Unavailable
from gateway.peppers import Peppers
from tests.gateway.domain.conftest import NOW, PEPPER
from tests.gateway.domain.test_races import statuses
from tests.support.gateways import copy_database

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string", "pattern": "^(a+)+$"}, "days": {"type": "array", "maxItems": 2}},
    "required": ["city"],
    "additionalProperties": False,
}
FIELDS: dict[str, Any] = {
    "name": "weather",
    "description": "The weather \N{SUN WITH FACE}",
    "parameters": SCHEMA,
    "url": "https://tools.example.com/w",
    "timeout_s": 0.5,
    "max_result_bytes": 100,
    "max_rounds": 2,
    "is_enabled": True,
}
SECRET = ("X-Key", "s3cret")


async def make(sessions: Sessions, admin: Principal, tenant_id: UUID | None, **fields: Any) -> UUID:
    tool = await create_tool(
        sessions, admin, tenant_id=tenant_id, fields=FIELDS | fields, credential=SECRET, pepper=PEPPER, now=NOW
    )
    return tool.id


async def test_a_tenant_may_use_its_own_and_everybodys_that_are_enabled(sessions: Sessions, admin: Principal) -> None:
    one, two = [
        (await create_tenant(sessions, admin, name=name, tier="pro", now=NOW)).id for name in ("tools-1", "tools-2")
    ]
    made = [await make(sessions, admin, None), await make(sessions, admin, one, name="mine")]
    made.append(await make(sessions, admin, one, name="off", is_enabled=False))
    book = ToolBook(sessions)
    assert set(await book.tools_of(one)) == {"weather", "mine"}
    [shared] = (await book.tools_of(two)).values()
    assert shared.parameters == SCHEMA and shared.description == FIELDS["description"]
    assert shared.sealed_credential is not None
    assert unseal(shared.sealed_credential, tool_id=shared.id, url=shared.url, peppers=Peppers(PEPPER)) == "s3cret"
    later = NOW + timedelta(days=1)
    changed = await change_tool(
        sessions, admin, shared.id, {"max_rounds": 3}, credential=None, has_credential=False, pepper=PEPPER, now=later
    )
    assert (changed.max_rounds, changed.changed_at, changed.sealed_credential) == (3, later, shared.sealed_credential)
    for tool_id in made:
        await delete_tool(sessions, admin, tool_id, now=later)
    assert set(await book.tools_of(one)) == {"weather", "mine"}
    book.forget()
    assert await book.tools_of(one) == {}


async def test_tools_are_read_anew_after_two_seconds_and_stand_while_the_database_is_away(tmp_path: Path) -> None:
    await asyncio.to_thread(copy_database, tmp_path / "db.sqlite")
    now_s, tenant_id = [0.0], uuid4()
    async with open_sessions(f"sqlite:///{tmp_path / 'db.sqlite'}") as opened:
        book = ToolBook(opened, clock=lambda: now_s[0])
        assert await book.tools_of(tenant_id) == {}
        admin = Principal(tenant_id, "operator", uuid4(), "pro", frozenset({"platform-admin"}))
        await make(opened, admin, None)
        now_s[0] = 1.9
        assert await book.tools_of(tenant_id) == {}
        now_s[0] = 2.1
        assert set(await book.tools_of(tenant_id)) == {"weather"}
        with closing(sqlite3.connect(tmp_path / "db.sqlite")) as file:
            file.execute("ALTER TABLE server_tools RENAME TO hidden")
        now_s[0] = 500.0
        assert set(await book.tools_of(tenant_id)) == {"weather"}
        now_s[0] = 700.0
        for asked in (tenant_id, uuid4()):
            with pytest.raises(Unavailable):
                await book.tools_of(asked)


async def test_requests_at_once_read_once(sessions: Sessions, admin: Principal) -> None:
    num_reads = 0

    def counting() -> AsyncSession:
        nonlocal num_reads
        num_reads += 1
        return sessions()

    book, tenant_id = ToolBook(counting), uuid4()  # type: ignore[arg-type]
    await asyncio.gather(*[book.tools_of(tenant_id) for _ in range(50)])
    assert num_reads == 1


async def test_of_two_that_want_one_name_at_once_one_gets_it(sessions: Sessions, admin: Principal) -> None:
    tenant = await create_tenant(sessions, admin, name="tools-race", tier="pro", now=NOW)
    for number in range(5):
        name = f"race-{number}"
        owners = (None, tenant.id, None, tenant.id)
        outcome = await statuses(*(make(sessions, admin, owner, name=name) for owner in owners))
        assert outcome == {200: 1, 409: 3}


async def test_one_owner_has_at_most_64(sessions: Sessions, admin: Principal) -> None:
    tenant = await create_tenant(sessions, admin, name="tools-many", tier="pro", now=NOW)
    for number in range(64):
        await make(sessions, admin, tenant.id, name=f"t{number}")
    with pytest.raises(Conflict, match="at most 64"):
        await make(sessions, admin, tenant.id, name="t64")


def test_a_sealed_secret_opens_for_its_tool_its_server_and_its_pepper_alone() -> None:
    tool_id, url = uuid4(), "https://a.example.com/x"
    sealed = seal("s3cret", tool_id=tool_id, url=url, pepper=PEPPER)
    assert sealed != seal("s3cret", tool_id=tool_id, url=url, pepper=PEPPER)
    assert unseal(sealed, tool_id=tool_id, url="https://A.example.com:443/y", peppers=Peppers(PEPPER)) == "s3cret"
    for other in (
        {"tool_id": uuid4(), "url": url, "peppers": Peppers(PEPPER)},
        {"tool_id": tool_id, "url": "https://b.example.com/x", "peppers": Peppers(PEPPER)},
        {"tool_id": tool_id, "url": url, "peppers": Peppers(PEPPER + "x")},
    ):
        with pytest.raises(CannotUnseal):
            unseal(sealed, **other)  # type: ignore[arg-type]
    with pytest.raises(CannotUnseal):
        unseal(sealed[:-1] + b"\x00", tool_id=tool_id, url=url, peppers=Peppers(PEPPER))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({}, 'arguments: "city" is a required property'),
        ({"city": 5}, 'arguments.city: 5 is not of type "string"'),
        ({"city": "a", "x": 1}, "arguments: Additional properties are not allowed"),
        ({"city": "a", "days": [1, 2, 3]}, "arguments.days: "),
        ([], "arguments: "),
        ("x" * 5000, "arguments: "),
    ],
)
def test_arguments_that_do_not_keep_the_schema_are_told_where(arguments: Any, words: str) -> None:
    problem = problem_with(arguments, SCHEMA)
    assert problem is not None and problem.startswith(words) and len(problem) < 400
    assert problem_with({"city": "a", "days": []}, SCHEMA) is None


def test_no_pattern_takes_longer_than_its_text() -> None:
    """A backtracking engine would not return."""
    assert problem_with({"city": "a" * 60_000 + "b"}, SCHEMA) is not None
    with pytest.raises(InvalidRequest, match="no valid JSON schema"):
        check_schema({"type": "object", "properties": {"a": {"pattern": "(?=x)y"}}}, param="parameters")
