"""Settings: the environment over the file, and one line that names the field when something is wrong."""

from ipaddress import ip_network
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
        ("trusted_proxies = ['10.0.0.1/8']", "trusted_proxies"),
        ("trusted_proxies = 'proxy.example'", "trusted_proxies"),
        ("cors_origins = ['app.example']", "cors_origins"),
        ("cors_origins = ['https://app.example/page']", "cors_origins"),
        ("max_connections = 0", "TIERGATE_MAX_CONNECTIONS"),
        ("kafka_bootstrap_servers = 'broker'", "TIERGATE_KAFKA_BOOTSTRAP_SERVERS"),
        ("kafka_security_protocol = 'TLS'", "TIERGATE_KAFKA_SECURITY_PROTOCOL"),
        ("kafka_security_protocol = 'SASL_SSL'", "TIERGATE_KAFKA_SASL_MECHANISM"),
        ("kafka_security_protocol = 'SASL_SSL'\nkafka_sasl_mechanism = 'PLAIN'", "TIERGATE_KAFKA_USER"),
        ("kafka_ca = '/nowhere.pem'", "TIERGATE_KAFKA_CA"),
        ("kafka_topic = 'us age'", "TIERGATE_KAFKA_TOPIC"),
        ("kafka_dead_letter_topic = 'tiergate.usage'", "TIERGATE_KAFKA_DEAD_LETTER_TOPIC"),
        ("kafka_replication = 1\nkafka_min_insync_replicas = 2", "TIERGATE_KAFKA_MIN_INSYNC_REPLICAS"),
        ("kafka_partitions = 0", "TIERGATE_KAFKA_PARTITIONS"),
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


def test_lists_stand_with_commas_in_a_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIERGATE_TRUSTED_PROXIES", "10.0.0.0/8, 2001:db8::1")
    monkeypatch.setenv("TIERGATE_CORS_ORIGINS", "https://a.example/,http://localhost:3000")
    settings = load_settings(write(tmp_path, ""))
    assert settings.trusted_proxies == (ip_network("10.0.0.0/8"), ip_network("2001:db8::1/128"))
    assert settings.cors_origins == ("https://a.example", "http://localhost:3000")
