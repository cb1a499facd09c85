"""Tools' servers are not trusted: whatever they do, a call ends in time with a short word to the model, and nothing is
reached that may not be."""

import asyncio
import json
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from ipaddress import ip_network
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from aiohttp import web
from sqlalchemy import select
from sqlalchemy.exc import OperationalError

from gateway.database import open_sessions
from gateway.domain.audit.models import AuditEntry
from gateway.domain.principal import Principal
from gateway.domain.tools.models import ServerTool
from gateway.domain.tools.sealing import seal
from gateway.http.outbound import Outbound
from gateway.metric_snapshots import Snapshot
from gateway.metrics import Metrics
from gateway.peppers import Peppers
from gateway.tools.caller import MAX_ARGUMENT_BYTES, MAX_CALLS_OF_TENANT, ToolCaller
from gateway.tools.calls import ToolCall, ToolResult
from gateway.tools.trail import AuditTrail
from tests.gateway.http.test_outbound import LOOPBACK, Rebinding
from tests.support.gateways import copy_database
from tests.support.tool_servers import REDIRECTS, serving_hostility, serving_tool

PEPPER = "pepper-of-the-tests"
PRINCIPAL = Principal(uuid4(), "acme", uuid4(), "pro", frozenset({"inference"}))
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "additionalProperties": False}
GUARD_S = 20.0
"""Far beyond the tools' own deadlines: what hangs fails here."""


def tool(url: str, **fields: Any) -> ServerTool:
    given: dict[str, Any] = {
        "id": uuid4(),
        "tenant_id": None,
        "name": "weather",
        "parameters": SCHEMA,
        "url": url,
        "timeout_s": 0.4,
        "max_result_bytes": 4096,
    }
    return ServerTool(**(given | fields))


class Bench:
    """A caller with its parts, over a fresh database."""

    def __init__(self, caller: ToolCaller, trail: AuditTrail, metrics: Metrics, database: str) -> None:
        self._caller = caller
        self._trail = trail
        self._metrics = metrics
        self._database = database

    async def call(self, called: ServerTool, arguments: str = "{}", principal: Principal = PRINCIPAL) -> ToolResult:
        async with asyncio.timeout(GUARD_S):
            return await self._caller.call(ToolCall(called, arguments, principal, "request-1", "call-1"))

    async def audited(self) -> list[AuditEntry]:
        await self._trail.write()
        async with open_sessions(self._database) as sessions, sessions() as session:
            return list(await session.scalars(select(AuditEntry).order_by(AuditEntry.at)))

    def measured(self) -> Snapshot:
        return self._metrics.snapshot()


@asynccontextmanager
async def bench(
    folder: Path, *, outbound: Outbound | None = None, hosts: tuple[str, ...] = (), shows_arguments: bool = False
) -> AsyncIterator[Bench]:
    outbound = outbound or Outbound(allowed_private=LOOPBACK)
    await asyncio.to_thread(copy_database, folder / "tools.db")
    database, metrics = f"sqlite:///{folder / 'tools.db'}", Metrics()
    async with open_sessions(database) as sessions:
        trail = AuditTrail(sessions, metrics, shows_arguments=shows_arguments)
        yield Bench(
            ToolCaller(outbound, trail, metrics, peppers=Peppers(PEPPER), allowed_hosts=hosts), trail, metrics, database
        )
    await outbound.close()


@pytest.fixture
async def calls(tmp_path: Path) -> AsyncIterator[Bench]:
    async with bench(tmp_path) as made:
        yield made


def said(result: ToolResult) -> str:
    """What a model is told of a failure."""
    assert len(result.text) < 400
    told: str = json.loads(result.text)["error"]
    return told


async def test_a_tool_gets_the_arguments_who_asks_and_its_credential(calls: Bench) -> None:
    async with serving_tool() as server:
        called = tool(server.url, credential_header="X-Key")
        called.sealed_credential = seal("s3cret", tool_id=called.id, url=called.url, pepper=PEPPER)
        result = await calls.call(called, '{"city": "Paris", "city": "Köln"}')
    assert (result.status, json.loads(result.text), result.http_status) == ("ok", {"city": "Köln"}, 200)
    [(headers, arguments)] = server.calls
    assert arguments == {"city": "Köln"}
    sent = {name: headers[name] for name in headers if name.startswith("x-")}
    assert sent == {
        "x-key": "s3cret",
        "x-tiergate-tool": "weather",
        "x-tiergate-tenant": PRINCIPAL.tenant_text,
        "x-tiergate-request-id": "request-1",
        "x-tiergate-call-id": "call-1",
    }
    assert headers["content-type"] == "application/json" and headers["accept-encoding"] == "identity"
    assert "cookie" not in headers and "authorization" not in headers


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        *((kind, "redirect") for kind in REDIRECTS),
        ("endless_body", "too_large"),
        ("endless_chunks", "too_large"),
        ("gzip_bomb", "too_large"),
        ("small_gzip", "not_json"),
        ("slow_body", "timeout"),
        ("slow_headers", "timeout"),
        ("silent", "timeout"),
        ("promised", "timeout"),
        ("endless_headers", "failed"),
        ("endless_header", "failed"),
        ("nonsense", "failed"),
        ("hang_up", "failed"),
    ],
)
async def test_a_hostile_server_is_refused_within_its_deadline(calls: Bench, kind: str, status: str) -> None:
    async with serving_hostility() as hostile:
        result = await calls.call(tool(f"{hostile.url}/{kind}"))
        assert (result.status, hostile.num_hits) == (status, 0), result
        assert said(result).startswith("the tool failed: ")
        assert hostile.num_bytes < 16 * 2**20, "it was read on and on"


async def test_interim_answers_without_end_are_given_up_in_time(calls: Bench) -> None:
    async with serving_hostility() as hostile:
        result = await calls.call(tool(f"{hostile.url}/endless_continues"))
    assert result.status in ("timeout", "failed")


@pytest.mark.parametrize("address", ["127.0.0.1", "::1", "::ffff:127.0.0.1", "169.254.169.254", "10.0.0.1"])
async def test_a_name_that_means_something_else_now_is_not_connected_to(tmp_path: Path, address: str) -> None:
    async with serving_tool() as server, bench(tmp_path, outbound=Outbound(resolver=Rebinding(address))) as calls:
        port = server.url.split(":")[2]
        result = await calls.call(tool(f"http://tools.example.com:{port}"))
    assert (result.status, server.calls) == ("refused", [])
    assert said(result) == "the tool failed: its address is not a public one"


async def test_a_name_is_looked_up_for_every_call(tmp_path: Path) -> None:
    outbound = Outbound(allowed_private=(ip_network("127.0.0.1/32"),), resolver=Rebinding("127.0.0.1", "127.0.0.2"))
    async with serving_tool() as server, bench(tmp_path, outbound=outbound) as calls:
        called = tool(f"http://tools.example.com:{server.url.split(':')[2]}")
        assert (await calls.call(called)).status == "ok"
        assert (await calls.call(called)).status == "refused"
    assert len(server.calls) == 1


async def test_a_tool_that_the_operator_no_longer_allows_is_not_called(tmp_path: Path) -> None:
    async with serving_tool() as server, bench(tmp_path, hosts=("tools.example.com",)) as calls:
        assert (await calls.call(tool(server.url))).status == "refused"
    assert server.calls == []


@pytest.mark.parametrize(
    ("answer", "status"),
    [
        (web.Response(status=500, text="a trace with secrets"), "http_error"),
        (web.Response(status=404, text="{}"), "http_error"),
        (web.Response(text="<html>"), "not_json"),
        (web.Response(body=b""), "not_json"),
        (web.Response(body=b'"\xff"'), "not_json"),
        (web.Response(text="NaN"), "not_json"),
        (web.Response(text="[" * 4000), "not_json"),
        (web.Response(body=b'"' + b"x" * 4095 + b'"'), "too_large"),
        (web.Response(body=b'"' + b"x" * 4094 + b'"'), "ok"),
    ],
)
async def test_an_answer_that_is_none_is_told(calls: Bench, answer: web.Response, status: str) -> None:
    async with serving_tool(answers=lambda _: answer) as server:
        result = await calls.call(tool(server.url))
    assert result.status == status
    assert result.status == "ok" or "secrets" not in said(result)


@pytest.mark.parametrize(
    "arguments",
    [
        *("{", "[]", "null", "NaN", '{"city": 5}', '{"other": 1}', '{"city": "\\ud800"}', "\ud800", "[" * 100_000),
        '{"city": "' + "x" * MAX_ARGUMENT_BYTES + '"}',
        '{"city": ' + "[" * 2000 + "]" * 2000 + "}",
        '{"city": ' + "9" * 5000 + "}",
    ],
)
async def test_arguments_that_do_not_fit_are_told_and_not_sent(calls: Bench, arguments: str) -> None:
    async with serving_tool() as server:
        result = await calls.call(tool(server.url), arguments)
    assert (result.status, server.calls) == ("bad_arguments", [])
    assert said(result).startswith("the arguments are") or said(result).startswith("arguments")


async def test_no_arguments_are_an_empty_object(calls: Bench) -> None:
    async with serving_tool() as server:
        assert (await calls.call(tool(server.url), "")).text == "{}"


async def test_a_secret_of_another_server_is_not_sent(calls: Bench) -> None:
    async with serving_tool() as server:
        called = tool(server.url, credential_header="X-Key")
        called.sealed_credential = seal("s", tool_id=called.id, url="https://other.example.com/", pepper=PEPPER)
        assert (await calls.call(called)).status == "no_credential"
    assert server.calls == []


async def test_every_call_is_audited_and_counted_without_its_arguments(calls: Bench) -> None:
    async with serving_tool() as server:
        shared, own = tool(server.url), tool(server.url, tenant_id=PRINCIPAL.tenant_id, name="mine")
        await calls.call(shared, '{"city": "xyzzy"}')
        await calls.call(own, '{"city": 5}')
    entries = await calls.audited()
    for entry in entries:
        assert (entry.action, entry.tenant_id, entry.actor_key_id) == (
            "tool.call",
            PRINCIPAL.tenant_id,
            PRINCIPAL.key_id,
        )
        assert entry.detail.pop("duration_ms") >= 0
    assert [(entry.object_id, entry.detail) for entry in entries] == [
        (
            str(called.id),
            {
                "tool": called.name,
                "request_id": "request-1",
                "call_id": "call-1",
                "status": status,
                "http_status": http_status,
                "num_bytes": num_bytes,
            },
        )
        for called, status, http_status, num_bytes in ((shared, "ok", 200, 17), (own, "bad_arguments", None, 0))
    ]
    counted = str(calls.measured())
    assert "weather" in counted and "(tenant's own)" in counted and "mine" not in counted


async def test_arguments_are_audited_where_the_operator_wants_it(tmp_path: Path) -> None:
    async with serving_tool() as server, bench(tmp_path, shows_arguments=True) as calls:
        await calls.call(tool(server.url), '{"city": "xyzzy"}')
        await calls.call(tool(server.url), "\x00\ud800é" + "x" * 9000)
        entries = await calls.audited()
    assert entries[0].detail["arguments"] == '{"city": "xyzzy"}'
    assert entries[1].detail["arguments"].startswith("\\x00\\ud800\\xe9xxx")
    assert len(entries[1].detail["arguments"]) < 5000


async def test_a_call_that_is_given_up_ends_at_the_tool_and_is_audited(calls: Bench) -> None:
    async with serving_tool(is_stuck=True) as server:
        call = asyncio.create_task(calls.call(tool(server.url, timeout_s=60)))
        await server.was_asked.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        async with asyncio.timeout(GUARD_S):
            await server.was_left.wait()
    assert [entry.detail["status"] for entry in await calls.audited()] == ["cancelled"]


async def test_one_tenants_slow_tools_do_not_take_all_room(calls: Bench) -> None:
    other = Principal(uuid4(), "other", uuid4(), "pro", frozenset())
    async with serving_tool(is_stuck=True) as stuck, serving_tool() as server:
        slow = tool(stuck.url, timeout_s=60)
        async with asyncio.TaskGroup() as group:
            waiting = [group.create_task(calls.call(slow)) for _ in range(MAX_CALLS_OF_TENANT)]
            async with asyncio.timeout(GUARD_S):
                await stuck.was_asked.wait()
            assert (await calls.call(tool(server.url))).status == "busy"
            assert (await calls.call(tool(server.url), principal=other)).status == "ok"
            for each in waiting:
                each.cancel()
        assert (await calls.call(tool(server.url))).status == "ok"


async def test_entries_wait_for_a_database_that_is_away(tmp_path: Path) -> None:
    async with serving_tool() as server, bench(tmp_path) as calls:
        with closing(sqlite3.connect(tmp_path / "tools.db")) as file:
            file.execute("ALTER TABLE audit_log RENAME TO hidden")
            for _ in range(2):
                await calls.call(tool(server.url))
                with pytest.raises(OperationalError):
                    await calls.audited()
            file.execute("ALTER TABLE hidden RENAME TO audit_log")
        assert len(await calls.audited()) == 2
        assert len(await calls.audited()) == 2
