"""The worker key is replaced: while it is, workers have the one or the other, and requests reach both."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from gateway.settings import ConfigError, load_settings
from gateway.upstream.client import MemberFailed, WorkerClient
from gateway.upstream.sightings import Sightings
from router.fleet import Member
from tests.gateway.upstream.test_sightings import sealed
from tests.support.checkpoints import make_tiny_checkpoint
from tests.support.gateways import Gateway, eventually, make_settings, running_gateway
from tests.support.members import serving_app
from tests.support.running_worker import RunningWorker, running_worker
from tests.support.valkey import ValkeyProcess

OLD, NEW = "the-worker-key-of-before", "the-worker-key-that-follows"
BODY = {"model": "small", "messages": [{"role": "user", "content": "Hi!"}], "max_tokens": 2}


def members(*workers: RunningWorker) -> dict[str, Any]:
    found = [{"url": worker.origin, "model": "tiny"} for worker in workers]
    return {"small": {"model": "tiny", "context_window": 512, "members": found}}


async def require_served(gateway: Gateway, *workers: RunningWorker) -> None:
    """Each of them computes, and no request fails."""
    await eventually(
        lambda: all(member.is_healthy for member in gateway.services.registry.fleet.pools["small"].members)
    )
    await gateway.post("/prices", {"model_id": "tiny", "prompt_nanousd": 100, "completion_nanousd": 400})
    before = [worker.replica.load_report().completion_tokens_total for worker in workers]
    async with gateway.client(await gateway.make_key()) as client:
        for _ in range(20):
            replies = await asyncio.gather(*(client.post("/chat/completions", json=BODY) for _ in range(4)))
            assert {reply.status_code for reply in replies} == {200}, replies[0].text
            now = [worker.replica.load_report().completion_tokens_total for worker in workers]
            if all(later > earlier for earlier, later in zip(before, now, strict=True)):
                return
    raise AssertionError("a worker computed nothing")


async def test_a_gateway_reaches_workers_of_both_keys_whichever_it_has_first(
    tmp_path: Path, valkey: ValkeyProcess
) -> None:
    model = make_tiny_checkpoint(tmp_path / "model")
    with running_worker(model, api_key=OLD) as one, running_worker(model, api_key=NEW) as two:
        pools = members(one, two)
        for number, keys in enumerate(((OLD, NEW), (NEW, OLD))):
            settings = make_settings(
                tmp_path / str(number), valkey.url, pools=pools, worker_key=keys[0], worker_other_keys=keys[1:]
            )
            async with running_gateway(settings) as gateway:
                await require_served(gateway, one, two)


async def test_a_worker_that_comes_back_with_the_other_key_is_reached_by_the_next_request(tmp_path: Path) -> None:
    asked: list[str] = []
    right = OLD

    async def load(request: web.Request) -> web.Response:
        asked.append(request.headers["authorization"].removeprefix("Bearer "))
        return web.Response(status=200 if asked[-1] == right else 401)

    app = web.Application()
    app.router.add_route("*", "/load", load)
    settings = make_settings(tmp_path, "redis://127.0.0.1:9", worker_key=OLD, worker_other_keys=(NEW,))
    async with serving_app(app) as url, WorkerClient(settings) as client:
        member = Member(worker_id="w", url=url, engine="tiergate", model_name="m")

        async def post() -> None:
            (await client.post(member, "/load", b"{}", {})).close()

        await post()
        right = NEW
        await post()
        await post()
        assert await client.get(url, "/load", engine="tiergate", deadline_s=30) == (200, b"")
        assert asked == [OLD, OLD, NEW, NEW, NEW]
        right = OLD
        assert await client.get(url, "/load", engine="tiergate", deadline_s=30) == (200, b"")
        await post()
        assert asked[5:] == [NEW, OLD, OLD]
        right = "a third"
        with pytest.raises(MemberFailed, match="401"):
            await post()
        assert asked[8:] == [OLD, NEW]


@pytest.mark.parametrize("key", [OLD, NEW])
def test_registrations_signed_with_either_key_are_taken(key: str) -> None:
    sightings = Sightings((OLD, NEW))
    sightings.note(sealed("w-1", age_s=0, key=key), 0.0, is_settled=True)
    assert [each.load.worker_id for each in sightings.registrations()] == ["w-1"]
    strangers = Sightings((OLD, NEW))
    strangers.note(sealed("w-1", age_s=0, key="another"), 0.0, is_settled=True)
    assert strangers.registrations() == []


def test_other_keys_stand_beside_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIERGATE_KEY_PEPPER", "p" * 16)
    monkeypatch.setenv("TIERGATE_WORKER_OTHER_KEYS", f"{OLD}, {NEW}")
    with pytest.raises(ConfigError, match=r"TIERGATE_WORKER_OTHER_KEYS: .*TIERGATE_WORKER_KEY"):
        load_settings()
    monkeypatch.setenv("TIERGATE_WORKER_KEY", "the-third-key")
    assert load_settings().worker_keys == ("the-third-key", OLD, NEW)
