"""Which files below a folder hold one of some words: a program, which reads what to look for from its input.

A process of its own, because the locks of SQLite's files belong to the process: whoever opens and closes one of them
in any other way drops them all ("How To Corrupt An SQLite Database File", 2.2). Another process that closes it next
takes itself for the last, and deletes the log that the first goes on writing: all of that would be lost.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path

_BLOCK_BYTES = 1 << 20


def files_with(root: Path, words: Sequence[bytes], *, skipped: str) -> list[str]:
    """Relative to `root`. skipped: a folder in it that is not looked into."""
    paths = [path for path in root.rglob("*") if path.is_file() and path.relative_to(root).parts[0] != skipped]
    return [str(path.relative_to(root)) for path in paths if _holds(path, words)]


def _holds(path: Path, words: Sequence[bytes]) -> bool:
    overlap = max(len(word) for word in words) - 1
    kept = b""
    try:
        with path.open("rb") as file:
            while block := file.read(_BLOCK_BYTES):
                kept += block
                if any(word in kept for word in words):
                    return True
                kept = kept[-overlap:] if overlap else b""
    except OSError:
        # It went meanwhile, or is a socket.
        return False
    return False


if __name__ == "__main__":
    asked = json.load(sys.stdin)
    words = [word.encode() for word in asked["words"]]
    json.dump(files_with(Path(asked["root"]), words, skipped=asked["skipped"]), sys.stdout)
