"""The Lua scripts in this folder, as sent to Redis."""

import hashlib
from importlib.resources import files

_FOLDER = files(__package__)
_SHARED = _FOLDER.joinpath("window.lua").read_text()


def _read(name: str) -> str:
    return _SHARED + _FOLDER.joinpath(f"{name}.lua").read_text()


def _digest(source: str) -> str:
    return hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest()


_SOURCES = {name: _read(name) for name in ("batch", "release", "tell", "beat", "bury", "show", "raise")}
SCRIPTS = tuple(_SOURCES.values())
BATCH, RELEASE, TELL, BEAT, BURY, SHOW, RAISE = (_digest(source) for source in SCRIPTS)
"""The scripts' digests for EVALSHA."""
