"""OpenAI's fields of files and batches: each entry of the table holds, and what is served has its effect."""

from pathlib import Path
from typing import Any

import pytest

from protocol.stored_fields import STORED
from tests.support.batches import CHAT, batch_scene, chat_line, client_of, ended, jsonl, start_batch
from tests.support.gateways import Gateway
from tests.support.valkey import ValkeyProcess

FILE = "file-" + "0" * 32
DRAFT: dict[str, Any] = {"input_file_id": FILE, "endpoint": CHAT, "completion_window": "24h"}
RESPONSE = "/responses/resp_1"
EXAMPLES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "include": ("GET", f"{RESPONSE}/input_items", {"params": {"include[]": "reasoning.encrypted_content"}}),
    "include_obfuscation": ("GET", RESPONSE, {"params": {"include_obfuscation": "true"}}),
    "starting_after": ("GET", RESPONSE, {"params": {"starting_after": "3"}}),
    "stream": ("GET", RESPONSE, {"params": {"stream": "true"}}),
    "purpose": ("POST", "/files", {"data": {"purpose": "vision"}, "files": {"file": ("a.png", b"x")}}),
    "completion_window": ("POST", "/batches", {"json": DRAFT | {"completion_window": "1h"}}),
    "endpoint": ("POST", "/batches", {"json": DRAFT | {"endpoint": "/v1/responses"}}),
}
MISTAKES: dict[str, dict[str, Any]] = {
    "mood": {"mood": "good"},
    "metadata": {"metadata": {str(i): "x" for i in range(17)}},
    "metadata.a": {"metadata": {"a": "x" * 513}},
    "output_expires_after.seconds": {"output_expires_after": {"anchor": "created_at", "seconds": 3599}},
    "output_expires_after.anchor": {"output_expires_after": {"anchor": "now", "seconds": 3600}},
    "input_file_id": {"input_file_id": 5},
}


async def test_what_is_not_served_is_refused_by_name(tmp_path: Path, valkey: ValkeyProcess) -> None:
    assert EXAMPLES.keys() == STORED.refused.keys() | STORED.partly.keys()
    async with batch_scene(tmp_path, valkey.url) as (gateway, _), gateway.client(await gateway.make_key()) as client:
        for name, (method, path, sent) in EXAMPLES.items():
            reply = await client.request(method, path, **sent)
            assert (reply.status_code, reply.json()["error"]["param"]) == (400, name), reply.text
        for name, fields in MISTAKES.items():
            reply = await client.post("/batches", json=DRAFT | fields)
            assert (reply.status_code, reply.json()["error"]["param"]) == (400, name), reply.text


async def test_what_a_batch_writes_lasts_as_long_as_it_says(tmp_path: Path, valkey: ValkeyProcess) -> None:
    async with batch_scene(tmp_path, valkey.url) as (gateway, _), client_of(gateway) as client:
        lasts: Any = {"anchor": "created_at", "seconds": 7200}
        content = jsonl([chat_line("a"), "broken"])
        batch = await ended(client, await start_batch(client, content, output_expires_after=lasts))
        for file_id in (batch.output_file_id, batch.error_file_id):
            file = await client.files.retrieve(file_id)
            assert file.expires_at == file.created_at + 7200


@pytest.mark.parametrize("order", ["asc", "desc"])
async def test_lists_come_in_pages_and_in_either_order(tmp_path: Path, valkey: ValkeyProcess, order: Any) -> None:
    async with batch_scene(tmp_path, valkey.url) as (gateway, _), client_of(gateway) as client:
        made = [await client.files.create(file=(f"{i}.jsonl", b"{}\n"), purpose="batch") for i in range(5)]
        expected = [file.id for file in made]
        if order == "desc":
            expected.reverse()
        pages = client.files.list(limit=2, order=order)
        assert [file.id async for file in pages] == expected
        assert (await pages).has_more
        after = await client.files.list(limit=10, order=order, after=expected[2], purpose="batch")
        assert [file.id for file in after.data] == expected[3:]
        await check_batches(gateway, client)


async def check_batches(gateway: Gateway, client: Any) -> None:
    """The newest first, as OpenAI has them."""
    ids = [await start_batch(client, jsonl([chat_line("a", f"{i}")])) for i in range(3)]
    assert [batch.id async for batch in client.batches.list(limit=1)] == ids[::-1]
    rest = await client.batches.list(after=ids[2])
    assert [batch.id for batch in rest.data] == ids[1::-1]
