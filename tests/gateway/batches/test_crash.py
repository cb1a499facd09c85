"""kill -9 of all gateways and of Valkey in the middle of a batch: each line has one result, and is billed once."""

import asyncio
import os
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import httpx
import openai
import pytest
from aiohttp import web

from gateway.metering.folders import list_folders
from gateway.metering.journal import Journal
from gateway.metering.store import version_of
from migrations.run import migrate
from protocol.usage import UsageEvent
from tests.support.batches import chat_line, ended, jsonl, records, start_batch, until
from tests.support.gateway_processes import CONFIG, Processes, accepts, started
from tests.support.gateways import ADMIN_KEY, copy_database
from tests.support.members import serving_member
from tests.support.object_stores import S3Server
from tests.support.postgres import find_binaries, running_postgres
from tests.support.valkey import ValkeyProcess

COST = 7 * 100 + 3 * 400
BINARIES = find_binaries()
SIZES = [(200, 1), pytest.param(10_000, 3, marks=pytest.mark.long)]
"""Lines, and kills."""


class GatedMember:
    """Answers so many requests, and lets the others wait until it may answer more."""

    def __init__(self) -> None:
        self.num_allowed = 0
        self.asked: Counter[str] = Counter()
        self._opened = asyncio.Event()

    def allow(self, num_more: int) -> None:
        self.num_allowed += num_more
        self._opened.set()

    async def answer(self, request: web.Request) -> web.Response:
        body = await request.json()
        while not self.num_allowed:
            self._opened.clear()
            await self._opened.wait()
        self.num_allowed -= 1
        self.asked[body["messages"][0]["content"]] += 1
        message = {"role": "assistant", "content": body["messages"][0]["content"].upper()}
        usage = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}
        choice = {"index": 0, "message": message, "finish_reason": "stop", "logprobs": None}
        whole = {"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}
        return web.json_response(whole | {"usage": usage})


@asynccontextmanager
async def gateways(folder: Path, redis_url: str, settings: Mapping[str, str]) -> AsyncIterator[Processes]:
    async with started(folder, redis_url, "--processes=2", **settings) as processes:
        async with asyncio.timeout(60):
            while not await accepts(processes.port):
                assert processes.parent.returncode is None, processes.log
                await asyncio.sleep(0.05)
        yield processes


def client_at(processes: Processes, key: str) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{processes.origin}/v1", api_key=key)


def final_events(data_dir: Path) -> list[UsageEvent]:
    """What is billed: of each request the event that counts, whichever outbox it is in."""
    found: dict[str, UsageEvent] = {}
    for path in list_folders(data_dir):
        journal = Journal.open(path, must_exist=True)
        for _, event in journal.read_closed(100_000):
            known = found.get(event.request_id)
            if known is None or version_of(event) > version_of(known):
                found[event.request_id] = event
        journal.close()
    return list(found.values())


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("num_lines", "num_kills"), SIZES)
async def test_each_line_has_one_result_and_one_bill(
    tmp_path: Path, own_valkey: ValkeyProcess, num_lines: int, num_kills: int
) -> None:
    (tmp_path / "data").mkdir()
    await asyncio.to_thread(copy_database, tmp_path / "data" / "tiergate.db")
    await _run_and_kill(tmp_path, own_valkey, {}, num_lines=num_lines, num_kills=num_kills)


@pytest.mark.skipif(
    BINARIES is None and "CI" not in os.environ, reason="PostgreSQL is not installed (apt-get install postgresql)"
)
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("num_lines", "num_kills"), SIZES)
async def test_on_postgresql_and_s3_too(
    tmp_path: Path, own_valkey: ValkeyProcess, s3: S3Server, num_lines: int, num_kills: int
) -> None:
    assert BINARIES is not None, "PostgreSQL is not installed"
    bucket = s3.make_bucket()
    with running_postgres(BINARIES) as database_url:
        await asyncio.to_thread(migrate, database_url)
        settings = {"TIERGATE_DATABASE_URL": database_url, "TIERGATE_ARTIFACTS_URL": f"s3://{bucket}"}
        await _run_and_kill(tmp_path, own_valkey, settings, num_lines=num_lines, num_kills=num_kills)
    # The file that was sent, and the one that was written; nothing half.
    assert [key.partition("/")[0] for key in s3.keys(bucket)] == ["files", "files"]


async def _run_and_kill(
    folder: Path, valkey: ValkeyProcess, settings: Mapping[str, str], *, num_lines: int, num_kills: int
) -> None:
    member = GatedMember()
    async with serving_member(member.answer) as url:
        (folder / "tiergate.toml").write_text(CONFIG.format(member_url=url))
        key = batch_id = ""
        for _ in range(num_kills):
            async with gateways(folder, valkey.url, settings) as processes:
                if not key:
                    key = await processes.make_key()
                    headers = {"Authorization": f"Bearer {ADMIN_KEY}"}
                    price = {"model_id": "m", "prompt_nanousd": 100, "completion_nanousd": 400}
                    async with httpx.AsyncClient(headers=headers) as admin:
                        reply = await admin.post(f"{processes.origin}/admin/v1/prices", json=price)
                        assert reply.status_code == 201, reply.text
                async with client_at(processes, key) as client:
                    if not batch_id:
                        lines = [chat_line(f"line {i}", f"say {i}") for i in range(num_lines)]
                        batch_id = await start_batch(client, jsonl(lines))
                    num_before = sum(member.asked.values())
                    member.allow(num_lines // 4)
                    await until(partial(_counted, client, batch_id, member, num_before + num_lines // 4))
                processes.parent.kill()
                await processes.parent.wait()
            valkey.stop()
            valkey.start()
        member.allow(10 * num_lines)
        async with gateways(folder, valkey.url, settings) as processes, client_at(processes, key) as client:
            batch = await ended(client, batch_id)
            output = await records(client, batch.output_file_id)
    assert batch.status == "completed" and batch.error_file_id is None
    assert batch.request_counts.completed == num_lines
    assert [each["custom_id"] for each in output] == [f"line {i}" for i in range(num_lines)]
    answers = [each["response"]["body"]["choices"][0]["message"]["content"] for each in output]
    assert answers == [f"SAY {i}" for i in range(num_lines)]
    billed = [event for event in final_events(folder / "data") if event.cost_nanousd]
    assert sorted(event.request_id for event in billed) == sorted(each["response"]["request_id"] for each in output)
    assert {(event.cost_nanousd, event.status, event.batch_id) for event in billed} == {(COST, "ok", batch_id)}


async def _counted(client: openai.AsyncOpenAI, batch_id: str, member: GatedMember, num_asked: int) -> bool:
    """All that was allowed has been answered, some of it is counted, and some is on its way."""
    batch = await client.batches.retrieve(batch_id)
    return member.num_allowed == 0 and sum(member.asked.values()) >= num_asked and batch.request_counts.completed > 0
