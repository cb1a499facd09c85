"""`tiergate adapter upload` as its users run it, against a real gateway."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.adapter_files import config_bytes, objects_below, tensors, weights_bytes
from tests.support.cli import tiergate
from tests.support.gateways import ADMIN_KEY, Gateway, make_settings, running_gateway
from tests.support.valkey import ValkeyProcess


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[Gateway]:
    valkey = ValkeyProcess(tmp_path / "valkey")
    (tmp_path / "valkey").mkdir()
    valkey.start()
    try:
        async with running_gateway(make_settings(tmp_path, valkey.url)) as running:
            await running.post("/models", {"id": "m-7b", "pool": "small", "context_window": 512})
            yield running
    finally:
        valkey.stop()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "voice"
    made.mkdir()
    (made / "adapter_config.json").write_bytes(config_bytes())
    (made / "adapter_model.safetensors").write_bytes(weights_bytes(tensors(layers=4, size=10_000)))
    return made


async def run(gateway: Gateway, *arguments: str) -> Any:
    env = {"TIERGATE_BASE_URL": gateway.base_url, "TIERGATE_ADMIN_KEY": ADMIN_KEY}
    return await asyncio.to_thread(lambda: tiergate("adapter", *arguments, env=env))


async def test_a_folder_is_uploaded_replaced_and_shown(gateway: Gateway, folder: Path) -> None:
    tenant = await gateway.post("/tenants", {"name": "acme", "tier": "pro"})
    ended = await run(gateway, "upload", str(folder), "--tenant", "acme", "--json")
    assert ended.returncode == 0, ended.stderr
    made = json.loads(ended.stdout)
    assert (made["name"], made["tenant_id"], made["status"]) == ("voice", tenant["id"], "pending")
    assert "uploading voice" in ended.stderr and "MB" in ended.stderr
    again = await run(gateway, "upload", str(folder), "--tenant", "acme")
    assert again.returncode == 1 and "--replace" in again.stderr
    (folder / "adapter_config.json").write_bytes(config_bytes(lora_alpha=9))
    replaced = await run(gateway, "upload", str(folder), "--tenant", "acme", "--replace", "--json")
    assert json.loads(replaced.stdout)["details"]["m-7b"]["version"] == 2
    await gateway.post("/models", {"id": "m-70b", "pool": "large", "context_window": 512})
    unclear = await run(gateway, "upload", str(folder), "--tenant", "acme")
    assert unclear.returncode == 2 and "--model: m-70b, m-7b" in unclear.stderr
    second = await run(gateway, "upload", str(folder), "--tenant", "acme", "--model", "m-70b", "--json")
    assert set(json.loads(second.stdout)["variants"]) == {"m-7b", "m-70b"}
    listed = await run(gateway, "list")
    assert "voice" in listed.stdout and "pending" in listed.stdout


REFUSED: Any = [
    ({"weights": b"PK\x03\x04" + bytes(100)}, (), "a zip archive"),
    (
        {"weights": weights_bytes({key: m * float("nan") for key, m in tensors().items()})},
        (),
        "not all numbers are finite",
    ),
    ({"weights": weights_bytes({key.replace("q_proj", "qkv"): m for key, m in tensors().items()})}, (), "adapt q_proj"),
    ({"config": config_bytes(r=1000)}, (), "got 1000"),
    ({}, ("--name", "a b"), "must not hold spaces"),
    ({}, ("--tenant", "nobody"), "there is no tenant 'nobody'"),
]


async def test_each_reason_for_a_refusal_reaches_whoever_uploads_and_nothing_is_registered(
    gateway: Gateway, tmp_path: Path
) -> None:
    runs = []
    for number, (files, arguments, reason) in enumerate(REFUSED):
        made = tmp_path / f"adapter-{number}"
        made.mkdir()
        (made / "adapter_config.json").write_bytes(files.get("config", config_bytes()))
        (made / "adapter_model.safetensors").write_bytes(files.get("weights", weights_bytes(tensors())))
        runs.append((await run(gateway, "upload", str(made), *arguments), reason))
    for ended, reason in runs:
        assert ended.returncode in (1, 2) and reason in ended.stderr.splitlines()[-1], ended.stderr
    assert (await gateway.admin.get("/adapters")).json()["data"] == []
    assert objects_below(gateway.services.settings.data_dir / "artifacts") == []


async def test_what_cannot_be_uploaded_is_told_in_one_line(gateway: Gateway, folder: Path, tmp_path: Path) -> None:
    weights = folder / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    cut = await run(gateway, "upload", str(folder))
    assert cut.returncode == 1 and "it was cut" in cut.stderr
    weights.rename(folder / "adapter_model.bin")
    pickle = await run(gateway, "upload", str(folder))
    assert pickle.returncode == 2 and "pickle" in pickle.stderr
    missing = await run(gateway, "upload", str(tmp_path / "none"))
    assert missing.returncode == 2 and "there is no adapter_config.json" in missing.stderr
