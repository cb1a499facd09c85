"""The Lua scripts in this folder, as sent to Redis."""

import hashlib
from importlib.resources import files

_FOLDER = files(__package__)


def _read(*names: str) -> str:
    return "".join([_FOLDER.joinpath(f"{name}.lua").read_text() for name in ("window", *names)])


def _digest(source: str) -> str:
    return hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest()


SCRIPTS = (
    *[_read(name) for name in ("batch", "release", "beat", "bury", "show")],
    *[_read("raised", name) for name in ("tell", "raise")],
)
BATCH, RELEASE, BEAT, BURY, SHOW, TELL, RAISE = (_digest(source) for source in SCRIPTS)
"""The scripts' digests for EVALSHA."""
