"""Ports on loopback."""

import socket
from contextlib import ExitStack

from tiergate.failure import Failure

LOOPBACK = "127.0.0.1"


def check_free(port: int, *, host: str = LOOPBACK) -> None:
    """Raises Failure if the port is in use or we may not listen there."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise Failure(f"--port {port} cannot be used on {host}: {error.strerror}") from error


def free_ports(count: int) -> list[int]:
    """Distinct ports that are free now."""
    with ExitStack() as held:
        probes = [held.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind((LOOPBACK, 0))
        return [probe.getsockname()[1] for probe in probes]
