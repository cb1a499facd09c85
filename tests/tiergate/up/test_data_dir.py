import json
import os
import stat
from pathlib import Path

import msgspec
import pytest

from gateway.main import check_data_dir
from gateway.settings import ConfigError, GatewaySettings
from tiergate.failure import Failure
from tiergate.up.data_dir import owned
from tiergate.up.ready import make_ready, ready_block, write_ready
from tiergate.up.secrets import load_secrets, save_secrets


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_the_directory_is_private_and_has_one_owner(tmp_path: Path) -> None:
    with owned(tmp_path / "a" / "data") as data_dir:
        assert mode(data_dir) == 0o700
        with pytest.raises(Failure, match="another `tiergate up`"), owned(data_dir):
            pass
    with owned(data_dir):
        pass


def test_a_directory_that_was_open_to_others_is_closed(tmp_path: Path) -> None:
    for folder in (tmp_path / "data", tmp_path / "gateways"):
        folder.mkdir()
        folder.chmod(0o755)
    with owned(tmp_path / "data") as data_dir:
        assert mode(data_dir) == 0o700
    check_data_dir(GatewaySettings(key_pepper="x" * 16, data_dir=tmp_path / "gateways"))
    check_data_dir(GatewaySettings(key_pepper="x" * 16, data_dir=tmp_path / "new" / "one"))
    assert mode(tmp_path / "gateways") == mode(tmp_path / "new" / "one") == 0o700


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_somebody_elses_directory_is_refused(tmp_path: Path) -> None:
    os.chown(tmp_path, 12345, -1)
    with pytest.raises(Failure, match="another user"), owned(tmp_path):
        pass
    with pytest.raises(ConfigError, match=r"^TIERGATE_DATA_DIR: .*another user$"):
        check_data_dir(GatewaySettings(key_pepper="x" * 16, data_dir=tmp_path))


def test_keys_are_made_once_and_kept_private(tmp_path: Path) -> None:
    made = load_secrets(tmp_path)
    assert mode(tmp_path / "keys.json") == 0o600
    assert load_secrets(tmp_path) == made
    keys = {made.worker_key, made.key_pepper, made.admin_key, made.valkey_password, made.clickhouse_password}
    assert len(keys) == 5 and all(len(key) > 30 for key in keys)


def test_a_keys_file_of_an_earlier_version_gets_what_it_lacks_and_keeps_the_rest(tmp_path: Path) -> None:
    made = load_secrets(tmp_path)
    path = tmp_path / "keys.json"
    fields = json.loads(path.read_text())
    del fields["clickhouse_password"]
    path.write_text(json.dumps(fields))
    completed = load_secrets(tmp_path)
    assert len(completed.clickhouse_password) > 30
    assert msgspec.structs.replace(completed, clickhouse_password=made.clickhouse_password) == made
    assert load_secrets(tmp_path) == completed
    assert mode(path) == 0o600


def test_a_broken_keys_file_is_told_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    path.write_text("{")
    with pytest.raises(Failure, match=r"keys\.json"):
        load_secrets(tmp_path)
    assert path.read_text() == "{"


def test_a_saved_key_is_read_again(tmp_path: Path) -> None:
    made = load_secrets(tmp_path)
    changed = msgspec.structs.replace(made, free_key="tg-x")
    save_secrets(tmp_path, changed)
    assert load_secrets(tmp_path) == changed


def test_the_ready_file_has_the_documented_fields_and_is_private(tmp_path: Path) -> None:
    path = tmp_path / "ready.json"
    write_ready(path, make_ready("http://127.0.0.1:8080", load_secrets(tmp_path)))
    fields = json.loads(path.read_text())
    assert list(fields) == ["base_url", "admin_key", "enterprise_key", "free_key", "dashboard_url"]
    assert fields["base_url"] == "http://127.0.0.1:8080/v1"
    assert mode(path) == 0o600
    assert list(tmp_path.glob(".*")) == []


def test_keys_are_shown_on_a_terminal_only(tmp_path: Path) -> None:
    kept = msgspec.structs.replace(load_secrets(tmp_path), enterprise_key="tg-one", free_key="tg-two")
    ready, keys_file = make_ready("http://127.0.0.1:8080", kept), tmp_path / "keys.json"
    shown = ready_block(ready, keys_file, after_s=1.0, shows_keys=True)
    logged = ready_block(ready, keys_file, after_s=1.0, shows_keys=False)
    keys = (kept.admin_key, kept.enterprise_key, kept.free_key)
    assert all(key in shown for key in keys)
    assert not any(key in logged for key in keys)
    assert str(keys_file) in logged
