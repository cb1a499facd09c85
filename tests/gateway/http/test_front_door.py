import resource
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from gateway.http.front_door import MAX_UNSENT_BYTES, NEVER, Bounds, FrontDoor
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


def test_what_an_unknown_client_may_take_by_default() -> None:
    bounds = Bounds(max_connections=1)
    assert (bounds.head_s, bounds.body_s, bounds.keep_alive_s, bounds.stalled_s) == (10, 30, 30, 30)


def test_the_limit_of_open_files_is_raised_as_far_as_the_system_lets_it() -> None:
    """In a process of its own, which begins with a low one."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    program = (
        "import resource; from gateway.http.open_files import raise_open_files; before = resource.RLIMIT_NOFILE;"
        f"resource.setrlimit(before, (64, {hard}));"
        "print(raise_open_files(), *resource.getrlimit(before), raise_open_files())"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ended.stdout.split() == [str(hard)] * 4


class _Waiting:
    deadline = write_deadline = NEVER

    def __init__(self, *, is_idle: bool = False, is_silent: bool = False) -> None:
        self.is_idle, self.is_silent = is_idle, is_silent
        self.is_over = False

    def expire(self) -> None:
        self.is_over = True

    def cut(self) -> None:
        self.is_over = True


@pytest.mark.parametrize(
    ("num_idle", "num_silent", "num_busy", "over"),
    [(9, 8, 0, (0, 0)), (2, 8, 8, (2, 0)), (1, 8, 10, (1, 8)), (0, 8, 10, (0, 8)), (2, 3, 18, (2, 3))],
)
def test_in_a_crowd_those_who_were_answered_go_before_those_who_said_nothing(
    num_idle: int, num_silent: int, num_busy: int, over: tuple[int, int]
) -> None:
    """Of at most 20, 18 are a crowd; a busy one stays, be it with half a head."""
    idle = [_Waiting(is_idle=True) for _ in range(num_idle)]
    silent = [_Waiting(is_silent=True) for _ in range(num_silent)]
    busy = [_Waiting() for _ in range(num_busy)]
    FrontDoor(Bounds(max_connections=20)).sweep([*busy, *silent, *idle])
    assert (sum(each.is_over for each in idle), sum(each.is_over for each in silent)) == over
    assert not any(each.is_over for each in busy)
