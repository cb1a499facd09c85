"""An answer whose usage the disk refuses: the client is told that it failed, and cannot have it afterwards either."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from gateway.metering.folders import list_folders
from tests.support.gateways import Gateway, durable_events, eventually
from tests.support.scripted_members import Turn
from tests.support.session_scenes import SessionScene, session_scene
from tests.support.valkey import ValkeyProcess

ANSWER = Turn(texts=("Hello",))


@contextmanager
def refusing_disk(gateway: Gateway) -> Iterator[None]:
    [folder] = list_folders(gateway.services.settings.data_dir)
    with closing(sqlite3.connect(folder / "events.sqlite", isolation_level=None)) as other:
        other.execute("CREATE TRIGGER refuse BEFORE INSERT ON closed BEGIN SELECT RAISE(ABORT, 'no'); END")
        try:
            yield
        finally:
            other.execute("DROP TRIGGER refuse")


async def until_recorded(scene: SessionScene) -> None:
    outbox = scene.gateway.services.outbox
    await eventually(lambda: outbox.failure is None and durable_events(scene.gateway))
    assert {(each.status, each.cost_nanousd) for each in durable_events(scene.gateway)} == {("error", 0)}


async def test_a_response_is_not_kept(tmp_path: Path, valkey: ValkeyProcess) -> None:
    async with session_scene(tmp_path, valkey, lambda _: ANSWER) as scene, scene.client() as client:
        with refusing_disk(scene.gateway):
            reply = await client.post("/responses", json={"model": "small", "input": "Hi"})
        assert (reply.status_code, reply.json()["error"]["code"]) == (500, "usage_not_durable")
        await until_recorded(scene)
        made = f"resp_{reply.headers['x-request-id'].replace('-', '')}"
        assert (await client.get(f"/responses/{made}")).status_code == 404


async def test_an_answer_is_not_cached(tmp_path: Path, valkey: ValkeyProcess) -> None:
    async with session_scene(tmp_path, valkey, lambda _: ANSWER) as scene:
        chosen = {"mode": "exact", "is_default": True, "ttl_s": 600}
        assert (await scene.gateway.admin.patch(f"/tenants/{scene.tenant_id}/cache", json=chosen)).status_code == 200
        with refusing_disk(scene.gateway):
            reply = await scene.ask("Hi", session=None, temperature=0)
        assert (reply.status_code, reply.json()["error"]["code"]) == (500, "usage_not_durable")
        await until_recorded(scene)
        again = await scene.ask("Hi", session=None, temperature=0)
        assert (again.status_code, again.headers["x-tiergate-cache"]) == (200, "miss")
