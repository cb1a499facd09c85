"""`/v1/files`: forms in any order, quotas, expiry, and what is no file."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import update

from gateway.batches.file_keeper import FileKeeper
from gateway.clock import utc_now
from gateway.domain.files.models import StoredFile
from tests.support.gateways import Gateway, make_settings, running_gateway
from tests.support.valkey import ValkeyProcess

BATCH = {"purpose": "batch"}


def form(content: bytes = b"{}\n", name: str = "in.jsonl") -> dict[str, Any]:
    return {"file": (name, content)}


@pytest.mark.parametrize(
    ("request_fields", "param"),
    [
        ({"data": {}, "files": form()}, "purpose"),
        ({"data": {"purpose": "vision"}, "files": form()}, "purpose"),
        ({"data": BATCH, "files": {"other": ("x", b"x")}}, "other"),
        ({"data": BATCH | {"color": "red"}, "files": form()}, "color"),
        ({"data": BATCH, "files": form(b"")}, "file"),
        ({"data": BATCH, "files": form(b"x" * 5000)}, "file"),
        ({"data": BATCH, "files": form(name="x" * 300)}, "file"),
        ({"data": BATCH | {"expires_after[seconds]": "3600"}, "files": form()}, "expires_after[anchor]"),
        (
            {"data": BATCH | {"expires_after[anchor]": "created_at", "expires_after[seconds]": "5"}, "files": form()},
            "expires_after[seconds]",
        ),
        ({"json": {"purpose": "batch"}}, "file"),
    ],
)
async def test_what_is_no_file_leaves_nothing(
    tmp_path: Path, valkey: ValkeyProcess, request_fields: dict[str, Any], param: str
) -> None:
    async with running_gateway(make_settings(tmp_path, valkey.url, max_file_bytes=4096)) as gateway:
        async with gateway.client(await gateway.make_key()) as client:
            reply = await client.post("/files", **request_fields)
            assert (reply.status_code, reply.json()["error"]["param"]) == (400, param), reply.text
            assert (await client.get("/files")).json()["data"] == []
        assert kept(gateway) == []


async def test_files_in_any_order_up_to_the_quota(tmp_path: Path, valkey: ValkeyProcess) -> None:
    settings = make_settings(tmp_path, valkey.url, max_files=2, max_files_bytes=100)
    async with running_gateway(settings) as gateway, gateway.client(await gateway.make_key()) as client:
        # The file before its purpose, as some clients send it.
        parts = [("file", ("a.jsonl", b"x" * 60)), ("purpose", (None, b"batch"))]
        file = (await client.post("/files", files=parts)).json()
        assert (file["bytes"], file["filename"]) == (60, "a.jsonl")
        reply = await client.post("/files", data=BATCH, files=form(b"x" * 41))
        assert (reply.status_code, reply.json()["error"]["code"]) == (403, "file_quota")
        assert (await client.post("/files", data=BATCH, files=form(b"x" * 40))).status_code == 200
        reply = await client.post("/files", data=BATCH, files=form(b"x"))
        assert (reply.status_code, reply.json()["error"]["code"]) == (403, "file_quota")
        assert (await client.delete(f"/files/{file['id']}")).json()["deleted"] is True
        assert (await client.post("/files", data=BATCH, files=form(b"x"))).status_code == 200
        assert len(kept(gateway)) == 2


async def test_expired_files_go(tmp_path: Path, valkey: ValkeyProcess) -> None:
    settings = make_settings(tmp_path, valkey.url)
    async with running_gateway(settings) as gateway, gateway.client(await gateway.make_key()) as client:
        lasts = {"expires_after[anchor]": "created_at", "expires_after[seconds]": "3600"}
        short = (await client.post("/files", data=BATCH | lasts, files=form())).json()
        assert short["expires_at"] == short["created_at"] + 3600
        kept_file = (await client.post("/files", data=BATCH, files=form(b"kept"))).json()
        services = gateway.services
        async with services.sessions.begin() as session:
            past = utc_now() - timedelta(seconds=1)
            await session.execute(update(StoredFile).where(StoredFile.size_bytes == 3).values(expires_at=past))
        assert (await client.get(f"/files/{short['id']}")).status_code == 404
        assert await FileKeeper(services.sessions, services.files, holder="").tidy() == 1
        assert [path.read_bytes() for path in kept(gateway)] == [b"kept"]
        assert (await client.get(f"/files/{kept_file['id']}/content")).content == b"kept"


def kept(gateway: Gateway) -> list[Path]:
    """What lies in the store."""
    folder = gateway.services.settings.data_dir / "artifacts"
    return [path for path in folder.rglob("*") if path.is_file()]
