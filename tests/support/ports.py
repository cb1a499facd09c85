"""Ports for real servers. Test processes that run at the same time never get the same port."""

import fcntl
import os
import random
import socket
import tempfile
from contextlib import suppress
from pathlib import Path

# Below the ephemeral ports: an outgoing connection could take one of those before the server has started.
_PORTS = range(15_000, 32_000)
_CLAIMS = Path(tempfile.gettempdir()) / f"tiergate-test-ports-{os.getuid()}"
_claimed: list[int] = []
"""Descriptors that hold the claims until this process ends."""


def free_port() -> int:
    """A port where nobody listens, and which no other test process gets while this one lives."""
    _CLAIMS.mkdir(exist_ok=True)
    # Not the default generator, which tests may seed.
    candidates = random.SystemRandom().sample(_PORTS, k=1000)
    return next(port for port in candidates if _is_free(port) and _is_claimed(port))


def _is_claimed(port: int) -> bool:
    """Try to claim the port; returns whether it is ours now."""
    descriptor = os.open(_CLAIMS / str(port), os.O_CREAT | os.O_RDWR, 0o600)
    with suppress(BlockingIOError):
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        _claimed.append(descriptor)
        return True
    os.close(descriptor)
    return False


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
