"""A program that finds the files below a folder that hold any of the words given on its standard input.

It is a process of its own, because the locks of SQLite's files belong to the process: opening and closing such a file
other than through SQLite drops all of them ("How To Corrupt An SQLite Database File", 2.2). The next process to close
the database would then take itself for the last user and delete the log that the first process is still writing; all of
that would be lost.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path

_BLOCK_BYTES = 1 << 20


def files_with(root: Path, words: Sequence[bytes], *, skipped: str) -> list[str]:
    """Returns paths relative to `root`. skipped: a folder directly in `root` that is not searched."""
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
        # The file was removed meanwhile, or is a socket.
        return False
    return False


if __name__ == "__main__":
    asked = json.load(sys.stdin)
    words = [word.encode() for word in asked["words"]]
    json.dump(files_with(Path(asked["root"]), words, skipped=asked["skipped"]), sys.stdout)
