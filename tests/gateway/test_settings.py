"""Settings: the environment over the file, and one line that names the field when something is wrong."""

from pathlib import Path

import pytest

from gateway.settings import ConfigError, load_settings

POOL = '[pools.small]\nmodel = "m"\ncontext_window = 512\n'


@pytest.fixture(autouse=True)
def pepper(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIERGATE_KEY_PEPPER", "p" * 16)


def write(folder: Path, text: str) -> Path:
    path = folder / "tiergate.toml"
    path.write_text(text)
    return path


def test_the_environment_wins_over_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIERGATE_PORT", "7777")
    settings = load_settings(write(tmp_path, "port = 8888\nhost = '::1'\n" + POOL))
    assert (settings.port, settings.host) == (7777, "::1")
    assert settings.pools["small"].context_window == 512


def test_secrets_are_not_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIERGATE_WORKER_KEY", "very-secret-key")
    shown = repr(load_settings(write(tmp_path, "")))
    assert "very-secret" not in shown
    assert "pppp" not in shown


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("port = 'many'", "TIERGATE_PORT"),
        ("port = 99999", "TIERGATE_PORT"),
        ("redis_url = 'http://x'", "TIERGATE_REDIS_URL"),
        ("database_url = 'mysql://x'", "TIERGATE_DATABASE_URL"),
        ("prot = 80", "prot"),
        ("port = ", "tiergate.toml"),
        (POOL.replace("512", "0"), "pools.small.context_window"),
        (POOL + "members = [{ url = 'ftp://x' }]", "pools.small.members.0.url"),
        (POOL + "members = [{ url = 'http://x', engine = 'vllm' }]", "pools.small.members.0.engine"),
        (POOL + "members = [{ url = 'http://x', api_key_env = 'NO_SUCH_KEY' }]", "NO_SUCH_KEY"),
        (POOL + "speed = 9", "pools.small.speed"),
    ],
)
def test_a_mistake_is_one_line_that_names_it(tmp_path: Path, text: str, names: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_settings(write(tmp_path, text))
    assert names in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_is_required_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TIERGATE_KEY_PEPPER")
    with pytest.raises(ConfigError, match="TIERGATE_KEY_PEPPER"):
        load_settings(write(tmp_path, ""))


def test_a_file_that_was_named_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--config"):
        load_settings(tmp_path / "none.toml")
