"""The listening sockets. The parent keeps them open, so that no connection is lost when a child goes."""

import socket
from collections.abc import Sequence

from gateway.http.front_door import bound_unsent
from gateway.settings import ConfigError, GatewaySettings


def bind(settings: GatewaySettings) -> socket.socket:
    """A listening socket for one process. Raises ConfigError if the address is in use."""
    return _bind(settings.host, settings.port)


def bind_for_each(settings: GatewaySettings) -> Sequence[socket.socket]:
    """Sockets for `settings.processes` processes at one address: the kernel spreads connections over those that listen.

    Raises ConfigError if the address is in use. Shared sockets would also let in the sockets of a second gateway that
    was started by mistake, so a socket that does not share the address is bound first as a test.
    """
    probe = bind(settings)
    port = probe.getsockname()[1]
    probe.close()
    return [_bind(settings.host, port, is_shared=True) for _ in range(settings.processes)]


def _bind(host: str, port: int, *, is_shared: bool = False) -> socket.socket:
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    bound_unsent(listener)
    if is_shared:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise ConfigError(f"TIERGATE_PORT: cannot listen on {host}:{port}: {error.strerror}") from error
    return listener
