"""A folder of public system prompts, from the option to `cached_tokens`."""

from pathlib import Path

import pytest

from tests.support.running_worker import running_worker
from worker.server.replica_loading import load_replica
from worker.settings import SettingsError, WorkerSettings

SYSTEM = "You answer in one sentence. " * 8


def test_two_tenants_chats_share_the_public_system_prompt(checkpoint: Path, tmp_path: Path) -> None:
    (tmp_path / "short.txt").write_text(SYSTEM + "\n")
    cached = []
    with running_worker(checkpoint, public_prompts=tmp_path, api_key="k") as worker, worker.client() as client:
        for salt, system in (("a", SYSTEM), ("b", SYSTEM), ("a", SYSTEM.lower()), ("b", SYSTEM.lower())):
            messages = [{"role": "system", "content": system}, {"role": "user", "content": f"I am {salt}"}]
            body = {"model": "tiny", "messages": messages, "max_tokens": 1, "cache_salt": salt}
            reply = client.post("/v1/chat/completions", json=body).raise_for_status().json()
            cached.append(reply["usage"]["prompt_tokens_details"]["cached_tokens"])
    assert cached[0] == 0 and cached[1] > 64
    # The template's first tokens are the only public ones, fewer than a block.
    assert cached[2:] == [0, 0]


@pytest.mark.parametrize("name", ["none such", "binary"])
def test_a_folder_that_cannot_be_read_stops_the_start(checkpoint: Path, tmp_path: Path, name: str) -> None:
    (tmp_path / "binary").mkdir()
    (tmp_path / "binary" / "a.txt").write_bytes(b"\xff\xfe")
    with pytest.raises(SettingsError, match=name):
        load_replica(WorkerSettings(model=checkpoint, public_prompts=tmp_path / name))
