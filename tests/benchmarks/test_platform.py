import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.platform import await_file

SLEEP = "import time; time.sleep(60)"
WITH_SERVER = f"""
from benchmarks.platform import end_on_sigterm
end_on_sigterm()
try:
    print("started", flush=True)
    {SLEEP}
finally:
    print("server ended", flush=True)
"""


@pytest.fixture
def sleeper() -> Iterator["subprocess.Popen[bytes]"]:
    process = subprocess.Popen([sys.executable, "-c", SLEEP])
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def test_a_platform_that_never_gets_ready_is_given_up(tmp_path: Path, sleeper: "subprocess.Popen[bytes]") -> None:
    with pytest.raises(SystemExit, match=r"not ready within 0\.1 s"):
        await_file(tmp_path / "ready.json", sleeper, within_s=0.1)


def test_a_platform_that_ends_early_is_told(tmp_path: Path, sleeper: "subprocess.Popen[bytes]") -> None:
    sleeper.kill()
    with pytest.raises(SystemExit, match="ended with -9"):
        await_file(tmp_path / "ready.json", sleeper, within_s=30)


def test_a_terminated_benchmark_ends_its_server() -> None:
    with subprocess.Popen([sys.executable, "-c", WITH_SERVER], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"started\n"
        process.terminate()
        assert process.stdout.read() == b"server ended\n"
    assert process.returncode == 143
