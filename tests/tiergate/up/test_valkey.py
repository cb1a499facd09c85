"""The embedded Valkey is reached over its Unix socket, or over TCP where the socket's path would be too long."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from redis import Redis
from redis.backoff import ConstantBackoff
from redis.exceptions import AuthenticationError, BusyLoadingError, ConnectionError
from redis.retry import Retry

from tests.support.ports import free_port
from tiergate.up.valkey import gateway_redis_url, redis_url, server_binary, write_config

PASSWORD = "pass-word"


@contextmanager
def running(folder: Path, port: int) -> Iterator[None]:
    config = write_config(folder, port=port, password=PASSWORD)
    server = subprocess.Popen([server_binary(), config], stdout=subprocess.DEVNULL)
    try:
        yield
    finally:
        server.terminate()
        server.wait(20)


def ask(url: str, *, unix: bool) -> bool:
    """Returns whether it answers."""
    retry = Retry(ConstantBackoff(0.05), 200)
    with Redis.from_url(url, retry=retry, retry_on_error=[ConnectionError, BusyLoadingError]) as redis:
        assert ("path" in redis.connection_pool.connection_kwargs) is unix
        return bool(redis.ping())


@pytest.mark.parametrize("name", ["short", "with a space and 100% more", "n" * 100])
def test_the_gateways_url_reaches_the_server_and_so_does_tcp(tmp_path: Path, name: str) -> None:
    folder, port = tmp_path / name, free_port()
    is_short = len(str(folder / "valkey.sock")) <= 107
    with running(folder, port):
        assert ask(gateway_redis_url(folder, port=port, password=PASSWORD), unix=is_short)
        assert ask(redis_url(port=port, password=PASSWORD), unix=False)
        if is_short:
            assert (folder / "valkey.sock").stat().st_mode & 0o077 == 0


def test_the_socket_demands_the_password_too(tmp_path: Path) -> None:
    port = free_port()
    with running(tmp_path, port):
        assert ask(gateway_redis_url(tmp_path, port=port, password=PASSWORD), unix=True)
        with pytest.raises(AuthenticationError):
            Redis.from_url(gateway_redis_url(tmp_path, port=port, password="wrong")).ping()


def test_a_socket_that_a_killed_server_left_is_no_obstacle(tmp_path: Path) -> None:
    port = free_port()
    config = write_config(tmp_path, port=port, password=PASSWORD)
    url = gateway_redis_url(tmp_path, port=port, password=PASSWORD)
    killed = subprocess.Popen([server_binary(), config], stdout=subprocess.DEVNULL)
    try:
        assert ask(url, unix=True)
    finally:
        killed.kill()
        killed.wait()
    assert (tmp_path / "valkey.sock").exists()
    with running(tmp_path, port):
        assert ask(url, unix=True)
