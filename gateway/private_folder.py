"""A folder that only its owner can access: the data directory contains keys, tenants and prompts."""

import errno
import os
import stat
from pathlib import Path

_OTHERS = 0o077


def make_private(folder: Path) -> None:
    """Create the folder, or remove other users' permissions from an existing one.

    Raises OSError; PermissionError if the folder belongs to another user, who could restore the permissions.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.stat()
    if found.st_uid != os.geteuid():
        raise PermissionError(errno.EPERM, "it belongs to another user", str(folder))
    if stat.S_IMODE(found.st_mode) & _OTHERS:
        folder.chmod(0o700)
