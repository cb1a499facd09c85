"""A session belongs to no gateway: two of them on one Valkey and one database, and one that is killed in mid-turn."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis.asyncio
from aiohttp import web

from gateway.metering.journal import JOURNAL_FILE
from tests.gateway.batches.test_crash import final_events
from tests.gateway.inference.test_sessions import Gate, echo, error_of
from tests.support.gateway_processes import CONFIG, Processes, accepts, started
from tests.support.gateways import ADMIN_KEY, copy_database, eventually, make_settings, running_gateway
from tests.support.scripted_members import Json, ScriptedMember, serving_script
from tests.support.session_scenes import SessionScene, session_scene, user
from tests.support.valkey import ValkeyProcess

DEADLINE_S = 90.0


@asynccontextmanager
async def two_scenes(folder: Path, valkey: ValkeyProcess) -> AsyncIterator[tuple[SessionScene, SessionScene]]:
    """The same tenant and member by either gateway."""
    async with AsyncExitStack() as stack:
        one = await stack.enter_async_context(session_scene(folder, valkey, echo))
        shared = {"database_url": f"sqlite+aiosqlite:///{folder / 'gateway' / 'tiergate.db'}"}
        settings = make_settings(folder, valkey.url, data_dir=folder / "other", pools=one.member.pools, **shared)
        other = await stack.enter_async_context(running_gateway(settings))
        await eventually(lambda: other.services.registry.fleet.pools["small"].members)
        yield one, replace(one, gateway=other)


async def test_a_session_is_busy_at_both_and_kept_for_both(tmp_path: Path, valkey: ValkeyProcess) -> None:
    async with two_scenes(tmp_path, valkey) as (one, other):
        gate = Gate()
        one.member.interrupt = gate.wait
        first = asyncio.create_task(one.ask("one"))
        await eventually(lambda: gate.num_waiting == 1)
        assert error_of(await other.ask("two")) == (409, "session_busy", None)
        async with other.client() as client:
            assert error_of(await client.delete("/sessions/s"))[:2] == (409, "session_busy")
        gate.opened.set()
        assert (await first).status_code == 200
        assert (await other.ask("two")).status_code == 200
        assert [text for _, text in one.seen()] == ["one", "re: one", "two"]
        assert await one.read() == await other.read()


async def test_what_comes_by_both_at_once_never_interleaves(tmp_path: Path, valkey: ValkeyProcess) -> None:
    async with two_scenes(tmp_path, valkey) as (one, other):
        replies = await asyncio.gather(*((one, other)[i % 2].ask(f"{i}") for i in range(20)))
        done = [reply for reply in replies if reply.status_code == 200]
        assert done and {reply.status_code for reply in replies} <= {200, 409}
        texts = [message["content"] for message in (await one.read())["messages"]]
        assert len(texts) == 2 * len(done)
        assert all(answer == f"re: {asked}" for asked, answer in zip(texts[::2], texts[1::2], strict=True))


async def test_a_response_of_one_is_gone_on_from_at_the_other(tmp_path: Path, valkey: ValkeyProcess) -> None:
    async with two_scenes(tmp_path, valkey) as (one, other), one.client() as here, other.client() as there:
        first = (await here.post("/responses", json={"model": "small", "input": "one"})).json()
        body = {"model": "small", "input": "two", "previous_response_id": first["id"]}
        second = await there.post("/responses", json=body)
        assert second.status_code == 200, second.text
        assert [text for _, text in one.seen()] == ["one", "re: one", "two"]
        assert (await here.get(f"/responses/{second.json()['id']}")).json() == second.json()


@pytest.mark.long
async def test_a_request_keeps_its_session_longer_than_a_lease(tmp_path: Path, valkey: ValkeyProcess) -> None:
    """A lease is of 15 s, and renewed every five."""
    async with two_scenes(tmp_path, valkey) as (one, other), redis.asyncio.Redis.from_url(valkey.url) as keys:
        gate = Gate()
        one.member.interrupt = gate.wait
        held = asyncio.create_task(one.ask("one"))
        await eventually(lambda: gate.num_waiting == 1)
        began_s = (await keys.time())[0]
        async with asyncio.timeout(DEADLINE_S):
            while (await keys.time())[0] < began_s + 20:
                assert await keys.pttl(f"ctx-lease:{{{one.tenant_id}}}:s") > 0
                await asyncio.sleep(0.5)
        assert error_of(await other.ask("two"))[:2] == (409, "session_busy")
        gate.opened.set()
        assert (await held).status_code == 200
        assert (await other.ask("two")).status_code == 200
        assert [text for _, text in one.seen()] == ["one", "re: one", "two"]


class HalfSaid:
    """A member's answer that stops in the middle, for prompts that say so."""

    def __init__(self) -> None:
        self.num_halves = 0

    async def __call__(self, request: web.Request) -> web.StreamResponse | None:
        body = await request.json()
        if "stay" not in body["messages"][-1]["content"]:
            return None
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        delta = b'data: {"choices":[{"index":0,"delta":{"content":"half"},"finish_reason":null}]}\n\n'
        await response.write(delta)
        self.num_halves += 1
        await asyncio.Event().wait()
        return response


@asynccontextmanager
async def one_gateway(folder: Path, redis_url: str, database_url: str) -> AsyncIterator[Processes]:
    async with started(folder, redis_url, TIERGATE_DATABASE_URL=database_url) as processes:
        async with asyncio.timeout(DEADLINE_S):
            while not await accepts(processes.port):
                assert processes.parent.returncode is None, processes.log
                await asyncio.sleep(0.05)
        yield processes


def client_at(processes: Processes, path: str, key: str) -> httpx.AsyncClient:
    headers = {"Authorization": f"Bearer {key}"}
    return httpx.AsyncClient(base_url=processes.origin + path, headers=headers, timeout=DEADLINE_S)


async def until_not(status: int, client: httpx.AsyncClient, body: Json, headers: Json) -> httpx.Response:
    async with asyncio.timeout(DEADLINE_S):
        while (reply := await client.post("/chat/completions", json=body, headers=headers)).status_code == status:  # noqa: ASYNC110
            await asyncio.sleep(0.2)
    return reply


def asked(text: str, **fields: Any) -> Json:
    return {"model": "small", "messages": [user(text)], "max_tokens": 9, **fields}


@pytest.mark.long
@pytest.mark.timeout(300)
async def test_a_gateway_killed_in_mid_turn_leaves_no_half_and_frees_session_and_key(
    tmp_path: Path, valkey: ValkeyProcess
) -> None:
    database_url = f"sqlite+aiosqlite:///{tmp_path / 'shared.db'}"
    await asyncio.to_thread(copy_database, tmp_path / "shared.db")
    in_session, named = {"X-Session-Id": "s"}, {"Idempotency-Key": "k"}
    repeated = asked("stay, by this name", stream=True)
    async with serving_script(echo) as member, AsyncExitStack() as stack:
        for name in ("one", "other"):
            (tmp_path / name / "data").mkdir(parents=True)
            (tmp_path / name / "tiergate.toml").write_text(CONFIG.format(member_url=member.url))
        one, other = [
            await stack.enter_async_context(one_gateway(tmp_path / name, valkey.url, database_url))
            for name in ("one", "other")
        ]
        async with client_at(one, "/admin/v1", ADMIN_KEY) as admin:
            price = {"model_id": "m", "prompt_nanousd": 100, "completion_nanousd": 400}
            assert (await admin.post("/prices", json=price)).status_code == 201
        key = await one.make_key()
        await die_half_said(one, member, key, [(asked("stay", stream=True), in_session), (repeated, named)])
        async with client_at(other, "/v1", key) as client:
            early = await client.post("/chat/completions", json=repeated, headers=named)
            assert error_of(early)[:2] == (409, "idempotency_key_in_use")
            # Nothing of the turn is there, and within a lease it goes on.
            assert (await until_not(409, client, asked("two"), in_session)).status_code == 200
            kept = (await client.get("/sessions/s")).json()
            assert [message["content"] for message in kept["messages"]] == ["two", "re: two"]
            again = await until_not(409, client, repeated, named)
            assert again.status_code == 200 and "idempotent-replayed" not in again.headers
            replayed = await client.post("/chat/completions", json=repeated, headers=named)
            assert replayed.content == again.content and replayed.headers["idempotent-replayed"] == "true"
        # Whoever starts where it died closes what it left open.
        async with one_gateway(tmp_path / "one", valkey.url, database_url):
            await eventually(lambda: len(final_events(tmp_path / "one" / "data")) == 2)
        [lost_turn, lost_repeated] = sorted(
            final_events(tmp_path / "one" / "data"), key=lambda event: event.session_id is None
        )
        assert (lost_turn.status, lost_repeated.status) == ("lost", "lost")
        assert lost_turn.cost_nanousd > 0
        # Under its key a request is billed once: by the answer that its client got.
        assert (lost_repeated.cost_nanousd, lost_repeated.price_lines) == (0, ())
        events = final_events(tmp_path / "other" / "data")
        assert sorted((event.session_id, event.status) for event in events if event.session_id) == [("s", "ok")]
        [billed] = [event for event in events if event.session_id is None]
        assert billed.status == "ok" and billed.cost_nanousd > 0


async def die_half_said(
    gateway: Processes, member: ScriptedMember, key: str, requests: list[tuple[Json, Json]]
) -> None:
    """kill -9 while each request's client has half of its answer."""
    half = HalfSaid()
    member.interrupt = half
    answers: list[AsyncIterator[bytes]] = []
    async with client_at(gateway, "/v1", key) as client, AsyncExitStack() as stack:
        for body, headers in requests:
            reply = await stack.enter_async_context(
                client.stream("POST", "/chat/completions", json=body, headers=headers)
            )
            assert reply.status_code == 200
            # An iterator that is let go would close the connection.
            answers.append(reply.aiter_bytes())
            assert b"half" in await anext(answers[-1])
        assert half.num_halves == len(requests)
        # Both are noted on disk as under way, with what was said.
        await eventually(lambda: len(open_requests(gateway)) == len(requests))
        gateway.parent.kill()
        await gateway.parent.wait()
    member.interrupt = None


def open_requests(gateway: Processes) -> list[Any]:
    """Of which it is on disk that a part was said."""
    query = """SELECT 1 FROM under_way LEFT JOIN progress USING (request_id)
WHERE coalesce(progress.completion_tokens, event ->> '$.completion_tokens') > 0"""
    found = []
    for folder in gateway.outboxes:
        with closing(sqlite3.connect(folder / JOURNAL_FILE)) as connection:
            found += connection.execute(query).fetchall()
    return found
