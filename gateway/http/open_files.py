"""How many connections the process' open files allow."""

import resource

RESERVED = 512
"""For the database, Redis, the outbox, logs and members' idle connections."""
FILES_A_STREAM = 2
"""The client's connection and the member's."""
_MOST = 50_000
_FEWEST = 16


def raise_open_files() -> int:
    """Lift the soft limit of open files to the hard one; the limit from now on."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def connections_for(num_files: int) -> int:
    """As many streams as `num_files` descriptors carry; -1 is no limit."""
    if num_files == resource.RLIM_INFINITY:
        return _MOST
    return min(_MOST, max(_FEWEST, (num_files - RESERVED) // FILES_A_STREAM))
