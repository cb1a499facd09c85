"""`tiergate up` as a whole, on tiny random checkpoints: what it promises beside the answers themselves."""

import json
import os
import signal
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.support.checkpoints import make_tiny_checkpoint
from tests.support.cli import refusal, tiergate
from tests.support.platform import Platform, start_platform, stop, wait_until
from tests.support.processes import is_alive

POOLS = ("small", "large")
COMMANDS = ("worker", "clickhouse", "consumer", "gateway")


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    folder = tmp_path_factory.mktemp("checkpoints")
    small = make_tiny_checkpoint(folder / "tiny", seed=1)
    large = make_tiny_checkpoint(folder / "large" / "tiny", seed=2)
    return "--small", str(small), "--large", str(large)


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory, checkpoints: tuple[str, ...]) -> Iterator[Platform]:
    running = start_platform(tmp_path_factory.mktemp("up") / "data", *checkpoints)
    yield running
    stop(running.process)


def complete(platform: Platform, *, key: str, model: str = "auto") -> httpx.Response:
    body = {"model": model, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4}
    headers = {"Authorization": f"Bearer {key}"}
    return httpx.post(f"{platform.base_url}/chat/completions", headers=headers, json=body, timeout=60)


def admin(platform: Platform, *arguments: str) -> str:
    env = {"TIERGATE_BASE_URL": platform.base_url, "TIERGATE_ADMIN_KEY": platform.admin_key}
    ended = tiergate(*arguments, env=env)
    assert ended.returncode == 0, ended
    return ended.stdout


def test_the_printed_curl_works(platform: Platform) -> None:
    printed = platform.log_path.read_text()
    curl = printed[printed.index("  curl ") : printed.index("Ctrl-C stops")].replace("\\\n", " ").strip()
    shell = subprocess.run(f"{curl} --silent --max-time 60", shell=True, capture_output=True, check=True)
    answer = json.loads(shell.stdout)
    assert answer["choices"][0]["message"]["role"] == "assistant"


def test_no_key_stands_in_the_log(platform: Platform) -> None:
    printed = platform.log_path.read_text()
    kept = json.loads((platform.data_dir / "keys.json").read_text())
    assert all(key and key not in printed for key in kept.values())
    assert str(platform.data_dir / "keys.json") in printed


def test_both_tenants_are_served_by_both_pools(platform: Platform) -> None:
    for key in (platform.enterprise_key, platform.free_key):
        for pool in POOLS:
            answer = complete(platform, key=key, model=pool)
            assert answer.status_code == 200, answer.text
            assert answer.headers["x-tiergate-pool"] == pool


def test_one_folder_name_twice_makes_two_model_ids(platform: Platform) -> None:
    listed = json.loads(admin(platform, "model", "list", "--json"))
    assert {(model["id"], model["pool"]) for model in listed} == {("tiny-small", "small"), ("tiny-large", "large")}


def test_a_second_up_on_the_same_directory_is_refused(platform: Platform, checkpoints: tuple[str, ...]) -> None:
    port = str(httpx.URL(platform.origin).port)
    assert port in refusal("up", "--data-dir", str(platform.data_dir), "--port", port, *checkpoints)
    said = refusal("up", "--data-dir", str(platform.data_dir), "--port", "1", *checkpoints)
    assert "another `tiergate up`" in said or "--port 1 " in said


def test_what_is_kept_is_private(platform: Platform) -> None:
    assert stat.S_IMODE(platform.data_dir.stat().st_mode) == 0o700
    for path in (platform.data_dir / "keys.json", platform.data_dir.with_suffix(".ready.json")):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_no_key_stands_in_an_argument_of_a_process(platform: Platform) -> None:
    kept = json.loads((platform.data_dir / "keys.json").read_text())
    pids = [pid for command in COMMANDS for pid in platform.pids_of(command)]
    assert len(pids) == 5
    shown = "".join(Path(f"/proc/{pid}/cmdline").read_text() for pid in pids)
    assert not any(key in shown for key in kept.values() if key)


def test_an_administrator_works_from_the_command_line(platform: Platform) -> None:
    made = json.loads(admin(platform, "tenant", "create", "initech", "--tier", "pro", "--json"))
    key = json.loads(admin(platform, "key", "create", "initech", "--name", "first", "--json"))
    assert key["tenant_id"] == made["id"]
    assert complete(platform, key=key["key"]).status_code == 200
    assert "initech" in admin(platform, "tenant", "list")
    assert "enterprise" in admin(platform, "tenant", "change", "initech", "--tier", "enterprise")
    admin(platform, "key", "revoke", key["id"])
    wait_until(lambda: complete(platform, key=key["key"]).status_code == 401, deadline_s=10)
    changed = json.loads(admin(platform, "tier", "change", "pro", "requests_per_minute=null", "--json"))
    assert changed["requests_per_minute"] is None
    assert "$0.0000009" in admin(platform, "price", "list")  # 900 nano-dollars a token


def test_an_adapter_and_a_price_are_declared_from_the_command_line(platform: Platform) -> None:
    made = json.loads(admin(platform, "adapter", "create", "ghost", "--variant", "tiny-small=spirit", "--json"))
    assert made["variants"] == {"tiny-small": "spirit"}
    admin(platform, "adapter", "delete", made["id"])
    assert admin(platform, "adapter", "list") == "none\n"
    admin(platform, "price", "add", "tiny-small", "--prompt", "7", "--completion", "9")
    assert len(json.loads(admin(platform, "price", "list", "--json"))) == 3


def test_what_was_made_is_deleted_from_the_command_line(platform: Platform) -> None:
    env = {"TIERGATE_BASE_URL": platform.base_url, "TIERGATE_ADMIN_KEY": platform.admin_key}
    admin(platform, "tenant", "create", "shortlived")
    admin(platform, "tenant", "delete", "shortlived")
    assert "shortlived" not in admin(platform, "tenant", "list")
    admin(platform, "model", "declare", "meta/m-7b", "--pool", "law", "--context-window", "9")
    arguments = ("--prompt", "1", "--completion", "1", "--valid-from", "2099-01-01T00:00:00Z", "--json")
    price = json.loads(admin(platform, "price", "add", "meta/m-7b", *arguments))
    admin(platform, "price", "delete", price["version"])
    admin(platform, "model", "delete", "meta/m-7b")
    assert "meta/m-7b" not in admin(platform, "model", "list") + admin(platform, "price", "list")
    assert "stop them first" in refusal("model", "delete", "tiny-small", env=env, exit_code=1)


def test_a_lost_admin_key_is_replaced_beside_the_running_platform(platform: Platform) -> None:
    made = tiergate("admin-key", "--data-dir", str(platform.data_dir))
    assert made.returncode == 0, made
    env = {"TIERGATE_BASE_URL": platform.base_url, "TIERGATE_ADMIN_KEY": made.stdout.strip()}
    assert "acme" in tiergate("tenant", "list", env=env).stdout


def test_usage_is_shown_by_tenant(platform: Platform) -> None:
    assert complete(platform, key=platform.enterprise_key).status_code == 200
    wait_until(lambda: json.loads(admin(platform, "usage", "--tenant", "acme", "--json")), deadline_s=30)
    row = json.loads(admin(platform, "usage", "--tenant", "acme", "--json"))[0]
    assert row["requests"] >= 1 and row["completion_tokens"] >= 1


def test_what_the_gateway_refuses_is_one_line_and_code_1(platform: Platform) -> None:
    env = {"TIERGATE_BASE_URL": platform.base_url, "TIERGATE_ADMIN_KEY": platform.admin_key}
    assert "acme" in refusal("tenant", "create", "acme", env=env, exit_code=1)
    wrong = {**env, "TIERGATE_ADMIN_KEY": platform.free_key}
    assert "403" in refusal("tenant", "list", env=wrong, exit_code=1)


def test_chat_prints_the_answer(platform: Platform) -> None:
    env = {"TIERGATE_BASE_URL": platform.base_url, "TIERGATE_API_KEY": platform.free_key}
    once = tiergate("chat", "Hello", "--max-tokens", "4", "--temperature", "0", env=env)
    assert once.returncode == 0 and once.stdout.endswith("\n")
    twice = tiergate("chat", "--max-tokens", "4", env=env, text="Hello\nHello again\n")
    assert twice.returncode == 0
    assert "key" in refusal("chat", "Hello", env={**env, "TIERGATE_API_KEY": "tg-no"}, exit_code=1)


def test_a_worker_that_dies_comes_back(platform: Platform) -> None:
    (victim, *_) = platform.pids_of("worker")
    os.kill(victim, signal.SIGKILL)
    wait_until(lambda: not is_alive(victim), deadline_s=10)
    for pool in POOLS:
        # The other pool may stand in meanwhile; what counts is that each serves again.
        wait_until(lambda pool=pool: _serves(platform, pool), deadline_s=60)


def _serves(platform: Platform, pool: str) -> bool:
    answer = complete(platform, key=platform.enterprise_key, model=pool)
    return answer.status_code == 200 and answer.headers["x-tiergate-pool"] == pool


def test_no_process_survives_a_stop_and_keys_survive_a_restart_with_another_model(
    platform: Platform, checkpoints: tuple[str, ...], tmp_path: Path
) -> None:
    pids = [pid for command in COMMANDS for pid in platform.pids_of(command)]
    assert stop(platform.process) == 0
    assert not any(map(is_alive, pids))
    # Or it would be taken for the second start's.
    platform.data_dir.with_suffix(".ready.json").unlink()
    other = make_tiny_checkpoint(tmp_path / "another model", seed=3)
    again = start_platform(platform.data_dir, "--small", str(other), *checkpoints[2:])
    try:
        assert again.admin_key == platform.admin_key
        assert (again.enterprise_key, again.free_key) == (platform.enterprise_key, platform.free_key)
        served = {complete(again, key=again.free_key, model=pool).headers["x-tiergate-model"] for pool in POOLS}
        assert served == {"another-model", "tiny"}
        pids = [pid for command in COMMANDS for pid in again.pids_of(command)]
        again.process.kill()
        again.process.wait()
        wait_until(lambda: not any(map(is_alive, pids)), deadline_s=10)
    finally:
        stop(again.process)
