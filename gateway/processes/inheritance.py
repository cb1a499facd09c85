"""What a child process inherits from its parent, passed as one command-line argument."""

import ctypes
import os
import signal
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass

OPTION = "--inherited"
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class Inherited:
    slot: int
    listeners: tuple[int, ...]
    """The descriptor of each slot's listening socket."""
    link: int
    """The descriptor of the child's end of the pair."""

    def argument(self) -> str:
        return ",".join(str(number) for number in (self.slot, self.link, *self.listeners))

    @classmethod
    def parse(cls, argument: str) -> "Inherited":
        """Raises ValueError."""
        slot, link, *listeners = (int(number) for number in argument.split(","))
        return cls(slot=slot, listeners=tuple(listeners), link=link)

    def listener(self, slot: int) -> socket.socket:
        """A duplicate of the slot's listening socket.

        Closing it leaves the original open, and with it the connections that are not accepted yet."""
        return socket.socket(fileno=os.dup(self.listeners[slot]))

    def close_listeners(self) -> None:
        """Close the inherited sockets: an address is free, and refuses connections, only once no process holds one."""
        for descriptor in self.listeners:
            os.close(descriptor)


def die_with_parent() -> Callable[[], None] | None:
    """A function to run in a child before its program (`preexec_fn`): Linux then kills the child when we die, even by
    kill -9. None on other systems."""
    if sys.platform != "linux":
        return None
    libc, parent_pid = ctypes.CDLL(None, use_errno=True), os.getpid()

    def arrange() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        # We may have died before this line.
        if os.getppid() != parent_pid:
            os._exit(1)

    return arrange
