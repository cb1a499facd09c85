"""Batches as clients see them: through the official client, and what they are billed."""

import asyncio
from pathlib import Path

import openai
import pytest
from aiohttp import web
from sqlalchemy import select, update

from gateway.clock import utc_now
from gateway.domain.batches.models import Batch
from gateway.inference.batches.line import batch_terms, with_room
from tests.support.batches import (
    CHAT,
    batch_scene,
    chat_line,
    client_of,
    ended,
    jsonl,
    records,
    start_batch,
    until,
)
from tests.support.gateways import durable_events, eventually
from tests.support.scripted_members import Json
from tests.support.tiers import make_tier
from tests.support.valkey import ValkeyProcess

COST = 10 * 100 + 5 * 400


async def test_a_batch_by_the_official_client(tmp_path: Path, valkey: ValkeyProcess) -> None:
    async with batch_scene(tmp_path, valkey.url) as (gateway, member):
        await gateway.post("/prices/discounts", {"basis_points": 5000})
        async with client_of(gateway) as client:
            content = jsonl([chat_line(f"line {i}", f"2+{i}?") for i in range(25)])
            file = await client.files.create(file=("in.jsonl", content), purpose="batch")
            assert (file.object, file.bytes, file.filename, file.purpose) == ("file", len(content), "in.jsonl", "batch")
            assert file.expires_at == file.created_at + 30 * 86_400
            assert (await client.files.content(file.id)).content == content
            batch = await client.batches.create(
                input_file_id=file.id, endpoint=CHAT, completion_window="24h", metadata={"job": "sums"}
            )
            assert (batch.object, batch.status, batch.endpoint) == ("batch", "validating", CHAT)
            batch = await ended(client, batch.id)
            assert batch.status == "completed" and batch.error_file_id is None and batch.metadata == {"job": "sums"}
            assert batch.request_counts.model_dump() == {"total": 25, "completed": 25, "failed": 0}
            assert batch.created_at <= batch.in_progress_at <= batch.finalizing_at <= batch.completed_at
            found = await records(client, batch.output_file_id)
            assert [each["custom_id"] for each in found] == [f"line {i}" for i in range(25)]
            assert {each["response"]["status_code"] for each in found} == {200}
            assert {each["response"]["body"]["choices"][0]["message"]["content"] for each in found} == {"four"}
            assert len({each["id"] for each in found}) == len({each["response"]["request_id"] for each in found}) == 25
            assert sorted(body["messages"][0]["content"] for body in member.bodies) == sorted(
                f"2+{i}?" for i in range(25)
            )
            assert [each.id async for each in client.batches.list()] == [batch.id]
            assert [each.purpose async for each in client.files.list()] == ["batch_output", "batch"]
            assert [each.id async for each in client.files.list(purpose="batch", limit=1)] == [file.id]
            events = durable_events(gateway)
            assert {event.request_id for event in events} == {each["response"]["request_id"] for each in found}
            assert {(event.status, event.batch_id, event.cost_nanousd) for event in events} == {
                ("ok", batch.id, COST // 2)
            }
            for event in events:
                assert sum(line.amount_nanousd for line in event.price_lines) == event.cost_nanousd
            assert (await client.files.delete(file.id)).deleted
            with pytest.raises(openai.NotFoundError):
                await client.files.retrieve(file.id)


async def test_broken_lines_are_reported_by_number_and_the_others_run(tmp_path: Path, valkey: ValkeyProcess) -> None:
    lines: list[Json | str] = [
        chat_line("good"),
        "{not json",
        "",
        {"custom_id": "no body", "method": "POST", "url": CHAT},
        chat_line("elsewhere") | {"url": "/v1/embeddings"},
        chat_line("streams", stream=True),
        chat_line("no such field", bogus=1, max_tokens="many"),
        chat_line("good too"),
    ]
    async with batch_scene(tmp_path, valkey.url) as (gateway, _), client_of(gateway) as client:
        batch = await ended(client, await start_batch(client, jsonl(lines)))
        assert batch.status == "completed"
        assert batch.request_counts.model_dump() == {"total": 7, "completed": 2, "failed": 5}
        assert [each["custom_id"] for each in await records(client, batch.output_file_id)] == ["good", "good too"]
        failed = await records(client, batch.error_file_id)
        assert [each["error"] and each["error"]["line"] for each in failed] == [2, 4, 5, 6, None]
        assert failed[-1]["response"]["status_code"] == 400
        assert failed[-1]["response"]["body"]["error"]["param"] == "max_tokens"
        assert [(error.line, error.code) for error in batch.errors.data] == [(i, "invalid_line") for i in (2, 4, 5, 6)]
        assert "url" in batch.errors.data[2].message and batch.errors.data[2].param == "url"


@pytest.mark.parametrize(
    ("content", "code", "line"),
    [
        (b"\n \n", "empty_file", None),
        (b"PK\x03\x04\xff\xfe no lines of JSON", "invalid_jsonl", None),
        (jsonl([chat_line("a"), chat_line("b"), chat_line("a")]), "duplicate_custom_id", 3),
        (jsonl([chat_line("a"), chat_line("b", model="other")]), "mismatched_model", 2),
    ],
)
async def test_what_is_no_batch_fails_whole(
    tmp_path: Path, valkey: ValkeyProcess, content: bytes, code: str, line: int | None
) -> None:
    async with batch_scene(tmp_path, valkey.url) as (gateway, member), client_of(gateway) as client:
        batch = await ended(client, await start_batch(client, content))
        assert batch.status == "failed" and batch.output_file_id is None and batch.error_file_id is None
        assert (batch.errors.data[0].code, batch.errors.data[0].line) == (code, line)
        assert member.bodies == [] and durable_events(gateway) == []


async def test_cancelling_stops_soon_and_keeps_what_is_done(tmp_path: Path, valkey: ValkeyProcess) -> None:
    lines = [chat_line(f"line {i}") for i in range(5000)]
    async with batch_scene(tmp_path, valkey.url) as (gateway, member), client_of(gateway) as client:
        batch_id = await start_batch(client, jsonl(lines))

        async def has_begun() -> bool:
            return bool((await client.batches.retrieve(batch_id)).request_counts.completed)

        await until(has_begun)
        assert (await client.batches.cancel(batch_id)).status == "cancelling"
        batch = await ended(client, batch_id)
        assert batch.status == "cancelled" and batch.cancelled_at >= batch.cancelling_at
        output = await records(client, batch.output_file_id)
        assert 0 < len(output) == batch.request_counts.completed < 5000
        billed = [event for event in durable_events(gateway) if event.cost_nanousd]
        assert {event.request_id for event in billed} == {each["response"]["request_id"] for each in output}
        num_asked = len(member.bodies)
        assert (await client.batches.cancel(batch_id)).status == "cancelled"
        assert len(member.bodies) == num_asked


def test_a_batch_leaves_its_tenant_half_of_what_a_minute_allows() -> None:
    tier = make_tier(requests_per_minute=9, tokens_per_minute=1000, tokens_per_day=50, concurrency=4, priority=0)
    terms = batch_terms(tier)
    assert (terms.requests_per_minute, terms.tokens_per_minute, terms.concurrency) == (5, 500, 2)
    assert (terms.tokens_per_day, terms.priority, terms.is_best_effort) == (50, 3, True)
    assert with_room(terms, tier, 500) is terms
    # One request may take more, up to a whole minute.
    assert [with_room(terms, tier, size).tokens_per_minute for size in (501, 1000, 1001)] == [501, 1000, 1000]
    assert batch_terms(make_tier()).requests_per_minute is None


async def test_what_is_not_answered_within_the_window_is_told(tmp_path: Path, valkey: ValkeyProcess) -> None:
    async with batch_scene(tmp_path, valkey.url) as (gateway, member):
        await gateway.admin.patch("/tiers/free", json={"requests_per_minute": 0})
        async with client_of(gateway, tier="free") as client:
            batch_id = await start_batch(client, jsonl([*(chat_line(f"line {i}") for i in range(5)), "broken"]))

            async def has_begun() -> bool:
                return bool((await client.batches.retrieve(batch_id)).status == "in_progress")

            await until(has_begun)
            async with gateway.services.sessions.begin() as session:
                await session.execute(update(Batch).values(expires_at=utc_now()))
            batch = await ended(client, batch_id)
            assert batch.status == "expired" and batch.expired_at >= batch.in_progress_at
            assert batch.request_counts.model_dump() == {"total": 6, "completed": 0, "failed": 6}
            assert batch.output_file_id is None and member.bodies == []
            missing = await records(client, batch.error_file_id)
            assert [each["error"]["code"] for each in missing] == ["batch_expired"] * 5 + ["invalid_line"]
            assert [each["custom_id"] for each in missing] == [f"line {i}" for i in range(5)] + [None]
        assert [event for event in durable_events(gateway) if event.cost_nanousd] == []


async def test_a_revoked_key_ends_its_batch(tmp_path: Path, valkey: ValkeyProcess) -> None:
    async with batch_scene(tmp_path, valkey.url) as (gateway, _):
        async with client_of(gateway) as client:
            await start_batch(client, jsonl([chat_line(f"line {i}") for i in range(5000)]))

        async def stands() -> Batch:
            async with gateway.services.sessions() as session:
                return (await session.scalars(select(Batch))).one()

        async def has_begun() -> bool:
            return (await stands()).num_completed > 0

        await until(has_begun)
        assert (await gateway.admin.delete(f"/keys/{(await stands()).key_id}")).status_code == 204

        async def is_cancelled() -> bool:
            return (await stands()).status == "cancelled"

        await until(is_cancelled)
        batch = await stands()
        assert batch.errors is not None and batch.errors[0]["code"] == "key_revoked"
        assert 0 < batch.num_completed < 5000 and batch.output_file_id is not None


class Allowance:
    """A member answers so many requests, and lets the others wait."""

    def __init__(self) -> None:
        self.num_left = 0
        self._more = asyncio.Event()

    def add(self, num_more: int) -> None:
        self.num_left += num_more
        self._more.set()

    async def take(self, _request: web.Request) -> None:
        while not self.num_left:
            self._more.clear()
            await self._more.wait()
        self.num_left -= 1


async def test_a_key_that_is_rotated_without_overlap_keeps_its_batch(tmp_path: Path, valkey: ValkeyProcess) -> None:
    async with batch_scene(tmp_path, valkey.url) as (gateway, member), client_of(gateway) as client:
        allowance = Allowance()
        member.interrupt = allowance.take
        batch_id = await start_batch(client, jsonl([chat_line(f"line {i}") for i in range(400)]))
        async with gateway.services.sessions() as session:
            key_id = (await session.scalars(select(Batch.key_id))).one()
        for _ in range(3):
            allowance.add(100)
            await eventually(lambda: allowance.num_left == 0)
            reply = await gateway.admin.post(f"/keys/{key_id}/rotate", json={"overlap_s": 0})
            assert reply.status_code == 200, reply.text
        allowance.add(400)
        async with openai.AsyncOpenAI(base_url=gateway.base_url, api_key=reply.json()["key"]) as renewed:
            batch = await ended(renewed, batch_id)
            assert batch.status == "completed" and batch.errors is None
            assert batch.request_counts.completed == 400
            with pytest.raises(openai.AuthenticationError):
                await client.batches.retrieve(batch_id)
