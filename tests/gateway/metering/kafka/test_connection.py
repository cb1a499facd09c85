"""A cluster that is away for an hour is asked hundreds of times."""

import os
import socket
import threading
from pathlib import Path

import pytest

from gateway.metering.kafka.connection import KafkaUnavailable, connect_admin
from gateway.settings import GatewaySettings


def test_an_attempt_that_nobody_answers_leaves_neither_thread_nor_socket_behind() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        server = f"127.0.0.1:{silent.getsockname()[1]}"
        settings = GatewaySettings(key_pepper="p" * 16, kafka_bootstrap_servers=server)
        before = set(threading.enumerate()), _sockets()
        with pytest.raises(KafkaUnavailable):
            connect_admin(settings)
        assert (set(threading.enumerate()), _sockets()) == before


def _sockets() -> set[str]:
    own = Path("/proc/self/fd")
    targets = (os.readlink(path) for path in own.iterdir() if path.is_symlink())
    return {target for target in targets if target.startswith("socket:")}
