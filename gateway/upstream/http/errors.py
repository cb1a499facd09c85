"""How an exchange with a member fails below HTTP: whose fault it is, and whether any answer had begun."""

import errno

_OURS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL})


class TransportFailed(Exception):
    """The member could not be reached, broke off, fell silent, or sent data that is not HTTP."""


class ConnectionWasStale(TransportFailed):
    """A kept-alive connection was closed before any byte of an answer; the request may be sent on another one."""


class OutOfResources(TransportFailed):
    """This process has no file descriptor, port or memory left. The member is not at fault."""


def as_transport_failure(error: OSError) -> TransportFailed:
    kind = OutOfResources if error.errno in _OURS else TransportFailed
    return kind(error.strerror or str(error) or type(error).__name__)
