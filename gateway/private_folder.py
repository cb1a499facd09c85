"""A folder that only its owner can look into: keys, tenants and prompts lie in the data directory."""

import errno
import os
import stat
from pathlib import Path

_OTHERS = 0o077


def make_private(folder: Path) -> None:
    """Create it, or take from one that is there what others may do.

    Raises OSError: PermissionError where it belongs to somebody else, who could open it again.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.stat()
    if found.st_uid != os.geteuid():
        raise PermissionError(errno.EPERM, "it belongs to another user", str(folder))
    if stat.S_IMODE(found.st_mode) & _OTHERS:
        folder.chmod(0o700)
