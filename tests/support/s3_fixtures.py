from collections.abc import Iterator

import pytest

from tests.support.object_stores import S3Server, running_s3


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    with running_s3() as running:
        yield running


@pytest.fixture
def s3(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> S3Server:
    """The server to which `s3://` URLs refer."""
    for name, value in s3_server.environment.items():
        monkeypatch.setenv(name, value)
    return s3_server
