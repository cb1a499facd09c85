"""What a child is given by its parent, as one argument of its command line."""

import ctypes
import os
import signal
import socket
import sys
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
    parent_pid: int

    def argument(self) -> str:
        return ",".join(str(number) for number in (self.slot, self.link, self.parent_pid, *self.listeners))

    @classmethod
    def parse(cls, argument: str) -> "Inherited":
        """Raises ValueError."""
        slot, link, parent_pid, *listeners = (int(number) for number in argument.split(","))
        return cls(slot=slot, listeners=tuple(listeners), link=link, parent_pid=parent_pid)

    def listener(self, slot: int) -> socket.socket:
        """Closing it leaves the parent's open, and with it the connections that nobody has accepted yet."""
        return socket.socket(fileno=os.dup(self.listeners[slot]))

    def close_listeners(self) -> None:
        """An address is free, and refuses connections, only when nobody holds any of its sockets."""
        for descriptor in self.listeners:
            os.close(descriptor)


def die_with_parent(parent_pid: int) -> None:
    """Linux kills this process when its parent dies, even by kill -9."""
    if sys.platform != "linux":
        return
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    # The parent may have died before this line.
    if os.getppid() != parent_pid:
        os._exit(1)
