import socket
from pathlib import Path

import pytest

from gateway.http.front_door import MAX_UNSENT_BYTES
from gateway.http.open_files import RESERVED, connections_for
from gateway.processes.listeners import bind
from tests.support.gateways import make_settings


@pytest.mark.skipif(not hasattr(socket, "TCP_NOTSENT_LOWAT"), reason="the system has no such bound")
def test_the_kernel_keeps_little_that_a_client_has_not_read(tmp_path: Path) -> None:
    listener = bind(make_settings(tmp_path, "redis://127.0.0.1:1/0"))
    listener.listen()
    with listener, socket.create_connection(listener.getsockname()):
        connection, _ = listener.accept()
        with connection:
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT) == MAX_UNSENT_BYTES


@pytest.mark.parametrize(
    ("num_files", "connections"),
    [(-1, 50_000), (64, 16), (1024, 256), (20_000, (20_000 - RESERVED) // 2), (2**20, 50_000)],
)
def test_a_stream_has_two_open_files(num_files: int, connections: int) -> None:
    assert connections_for(num_files) == connections
