"""How many connections the process's limit on open files allows."""

import resource

RESERVED = 512
"""Descriptors for the database, Redis, the outbox, logs and idle connections to members."""
FILES_A_STREAM = 2
"""The client's connection and the one to the member."""
_MOST = 50_000
_FEWEST = 16


def raise_open_files() -> int:
    """Raise the soft limit of open files to the hard limit, and return it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def connections_for(num_files: int) -> int:
    """How many connections `num_files` descriptors allow; RLIM_INFINITY means no limit."""
    if num_files == resource.RLIM_INFINITY:
        return _MOST
    return min(_MOST, max(_FEWEST, (num_files - RESERVED) // FILES_A_STREAM))
