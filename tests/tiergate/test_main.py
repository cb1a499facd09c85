import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.cli import refusal, tiergate
from tests.support.ports import free_port

PEPPER = {"TIERGATE_KEY_PEPPER": "a-pepper-that-is-long-enough"}


def test_help_lists_every_command() -> None:
    shown = tiergate("--help")
    assert shown.returncode == 0
    for command in ("up", "gateway", "worker", "consumer", "clickhouse", "migrate", "chat", "usage", "tenant", "key"):
        assert command in shown.stdout


def test_help_loads_nothing_heavy() -> None:
    heavy = "('torch', 'numpy', 'fastapi', 'sqlalchemy', 'httpx', 'aiohttp', 'pydantic_settings', 'chdb')"
    code = (
        f"import sys, tiergate.main; tiergate.main.make_app(); sys.exit(any(name in sys.modules for name in {heavy}))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0


def test_the_gateways_process_never_loads_torch() -> None:
    code = "import sys, gateway.main, gateway.metering.consumer, tiergate.main; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nothing-like-it"], "nothing-like-it"),
        (["gateway", "--port", "many"], "--port"),
        (["gateway", "--port", "70000"], "--port"),
        (["up", "--port", "0"], "--port"),
        (["worker", "--dtype", "int3", "--model", "."], "--dtype"),
        (["worker", "--model", "no/such/folder"], "no/such/folder"),
        (["worker", "--model", ".", "--adapter", "pirate"], "NAME=PATH"),
        (["worker"], "--model"),
        (["up", "--small", "no/such/folder"], "no/such/folder"),
        (["up", "--json-ready", "no/such/folder/ready.json", "--small", ".", "--large", "."], "config.json"),
        (["tenant"], "ommand"),
        (["tenant", "list"], "TIERGATE_ADMIN_KEY"),
        (["tier", "change", "free", "rpm", "--admin-key", "k", "--base-url", "http://127.0.0.1:1"], "FIELD=VALUE"),
        (["usage", "--group-by", "mood", "--admin-key", "k"], "--group-by"),
        (["gateway", "--config", "no-such.toml"], "no-such.toml"),
    ],
)
def test_a_bad_option_is_one_line_and_code_2(arguments: list[str], said: str) -> None:
    assert said in refusal(*arguments, env=PEPPER)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("KEY_PEPPER", "short"),
        ("PORT", "eighty"),
        ("REDIS_URL", "http://x"),
        ("DATABASE_URL", "oracle://x"),
        ("POOLS", "{"),
    ],
)
def test_a_bad_variable_is_one_line_that_names_it(name: str, value: str) -> None:
    assert f"TIERGATE_{name}" in refusal("gateway", env={**PEPPER, f"TIERGATE_{name}": value})


@pytest.mark.parametrize("command", ["migrate", "consumer"])
def test_every_command_refuses_a_bad_variable(command: str) -> None:
    assert "TIERGATE_KEY_PEPPER" in refusal(command, env={"TIERGATE_KEY_PEPPER": "short"})


def test_up_refuses_a_bad_variable_before_it_starts_anything(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    checkpoints = ("--small", str(tmp_path), "--large", str(tmp_path))
    data_dir = ("--data-dir", str(tmp_path / "data"), "--port", str(free_port()))
    assert "TIERGATE_DRAIN_S" in refusal("up", *checkpoints, *data_dir, env={"TIERGATE_DRAIN_S": "soon"})


def test_a_port_in_use_is_one_line(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        assert port in refusal("gateway", "--port", port, env={**PEPPER, "TIERGATE_DATA_DIR": str(tmp_path)})
        assert port in refusal("worker", "--model", str(tmp_path), "--port", port)
        assert port in refusal("up", "--data-dir", str(tmp_path / "data"), "--port", port)


def test_an_unwritable_data_directory_is_one_line(tmp_path: Path) -> None:
    """A file where the directory should be: root may write to any directory."""
    in_the_way = tmp_path / "file"
    in_the_way.write_text("")
    path = str(in_the_way / "data")
    assert path in refusal("up", "--data-dir", path, "--port", str(free_port()))
    assert path in refusal("gateway", "--port", "0", env={**PEPPER, "TIERGATE_DATA_DIR": path})
    assert path in refusal("migrate", env={**PEPPER, "TIERGATE_DATA_DIR": path})


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_data_directory_is_one_line(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    assert str(tmp_path) in refusal("up", "--data-dir", str(tmp_path), "--port", str(free_port()))


def test_nobody_there_is_one_line_and_code_1() -> None:
    said = refusal("tenant", "list", "--admin-key", "k", "--base-url", "http://127.0.0.1:1/v1", exit_code=1)
    assert "127.0.0.1:1" in said
    assert "127.0.0.1:1" in refusal("chat", "hello", "--base-url", "http://127.0.0.1:1/v1", exit_code=1)


def test_a_key_or_an_address_that_cannot_be_one_is_one_line() -> None:
    assert "--api-key" in refusal("chat", "hello", "--api-key", "schlüssel")
    assert "--base-url" in refusal("tenant", "list", "--admin-key", "k", "--base-url", "http://x:y")


def test_the_version_is_shown() -> None:
    assert tiergate("--version").stdout.startswith("tiergate ")


def test_migrate_tells_what_it_did(tmp_path: Path) -> None:
    env = PEPPER | {"TIERGATE_DATA_DIR": str(tmp_path)}
    first = tiergate("migrate", "--json", env=env)
    applied = json.loads(first.stdout)["applied"]
    assert applied[0] == "0001" and applied == sorted(applied)
    assert json.loads(tiergate("migrate", "--json", env=env).stdout) == {"applied": []}
    assert tiergate("migrate", env=env).stdout == "the database is at the newest revision\n"
