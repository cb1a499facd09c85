"""Distributes tests over processes: the tests of a file, or of a folder whose files share servers, stay together."""

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

_SHARED = {
    "tests/e2e",
    "tests/gateway/dashboard",
    "tests/gateway/inference",
    "tests/gateway/metering",
    "tests/gateway/metering/kafka",
    "tests/worker/server",
}
"""Folders whose fixtures start whole servers once per session, which means once per process."""
_ALONE = {
    "tests/e2e/test_crash.py",
    "tests/e2e/test_mixed_adapters.py",
    "tests/gateway/inference/test_stored_adapters.py",
}
"""Files in these folders that start servers of their own."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling | None:
    return _ByServers(config, log) if config.getvalue("dist") == "loadscope" else None


class _ByServers(LoadScopeScheduling):
    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.split("::", 1)[0]
        folder = file.rpartition("/")[0]
        return folder if folder in _SHARED and file not in _ALONE else file
