"""The Lua scripts of this folder, as sent to Redis."""

import hashlib
from importlib.resources import files

_FOLDER = files(__package__)
_SHARED = _FOLDER.joinpath("shared.lua").read_text()
SCRIPTS = tuple(
    _SHARED + _FOLDER.joinpath(f"{name}.lua").read_text()
    for name in ("open", "renew", "commit", "release", "swap", "create")
)
OPEN, RENEW, COMMIT, RELEASE, SWAP, CREATE = (
    hashlib.sha1(script.encode(), usedforsecurity=False).hexdigest() for script in SCRIPTS
)
"""The scripts' SHA-1 digests, by which EVALSHA calls them."""
