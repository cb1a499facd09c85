"""Releases the shared-library pages that start-up leaves in a process's memory.

`import torch` alone leaves 350 MB of them, much of it CUDA's even on a machine without a GPU: the linker looked there,
or the system read ahead. A released page comes back from the page cache as soon as it is touched.
"""

import ctypes
import mmap
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_MAPPING = re.compile(r"([0-9a-f]+)-([0-9a-f]+) (\S+) \S+ \S+ \d+\s*(.*)")


@dataclass
class _Mapping:
    begin: int
    end: int
    permissions: str
    path: str
    rss_kb: int = 0
    anonymous_kb: int = 0

    @property
    def is_clean_library(self) -> bool:
        """The mapping has no private pages and cannot get any, so its file holds all of it."""
        return ".so" in Path(self.path).name and "w" not in self.permissions and not self.anonymous_kb


def release() -> int:
    """Release the pages and return how many bytes that was. Does nothing outside Linux, which lists the mappings."""
    try:
        smaps = Path("/proc/self/smaps").read_text()
    except OSError:
        return 0
    madvise = ctypes.CDLL(None, use_errno=True).madvise
    released_kb = 0
    for mapping in _mappings(smaps):
        if mapping.is_clean_library and mapping.rss_kb:
            size = ctypes.c_size_t(mapping.end - mapping.begin)
            if madvise(ctypes.c_void_p(mapping.begin), size, mmap.MADV_DONTNEED) == 0:
                released_kb += mapping.rss_kb
    return released_kb << 10


def _mappings(smaps: str) -> Iterator[_Mapping]:
    current: _Mapping | None = None
    for line in smaps.splitlines():
        head = _MAPPING.fullmatch(line)
        if head is not None:
            if current is not None:
                yield current
            begin, end, permissions, path = head.groups()
            current = _Mapping(int(begin, 16), int(end, 16), permissions, path)
        elif current is not None and line.startswith("Rss:"):
            current.rss_kb = int(line.split()[1])
        elif current is not None and line.startswith("Anonymous:"):
            current.anonymous_kb = int(line.split()[1])
    if current is not None:
        yield current
