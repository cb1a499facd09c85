"""A process gives back what its libraries' start left in memory, and goes on working."""

import subprocess
import sys

PROGRAM = """
import psutil, torch
from worker import library_pages
process = psutil.Process()
before = process.memory_info().rss
released = library_pages.release()
after = process.memory_info().rss
product = torch.ones(64, 64) @ torch.ones(64, 64)
assert product.sum().item() == 64 ** 3
print(before - after, released)
"""


def test_a_start_s_pages_are_given_back() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    given_back, released = map(int, done.stdout.split())
    assert released > 50 << 20
    assert given_back > 0.8 * released
