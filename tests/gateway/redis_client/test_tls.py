"""`rediss://` against a real Valkey behind TLS with a certificate of an authority of our own."""

import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme

from gateway.redis_client import connect_redis
from gateway.redis_client.pipeline import Pipeline
from tests.support.freezing_proxy import freezing_proxy
from tests.support.valkey import ValkeyProcess


class Silent:
    def note_answer(self) -> None: ...

    def note_late(self) -> None: ...

    def note_connections(self, num_connections: int) -> None:
        self.num_connections = num_connections


@pytest.fixture(scope="module")
def valkey(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ValkeyProcess]:
    process = ValkeyProcess(tmp_path_factory.mktemp("valkey"))
    process.start()
    yield process
    process.stop()


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="module")
def authority_file(authority: trustme.CA, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tls") / "ca.pem"
    authority.cert_pem.write_to_path(str(path))
    return path


def server_side(authority: trustme.CA, name: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(name).configure_cert(context)
    return context


async def num_connections(url: str) -> int:
    """How many connections the pipeline of the limits gets; it asks something over them."""
    watch = Silent()
    pipeline = Pipeline(url, deadline_s=5.0, scripts=(), watch=watch)
    await pipeline.connect()
    if watch.num_connections:
        assert await pipeline.execute("PING") == b"PONG"
    pipeline.close()
    return watch.num_connections


async def test_both_clients_speak_tls_to_a_server_whose_certificate_holds(
    valkey: ValkeyProcess, authority: trustme.CA, authority_file: Path
) -> None:
    async with freezing_proxy(valkey.port, tls=server_side(authority, "localhost")) as proxy:
        url = f"rediss://localhost:{proxy.port}/0?ssl_ca_certs={authority_file}"
        assert await num_connections(url) == 2
        redis = connect_redis(url, deadline_s=5.0)
        assert await redis.ping()
        await redis.aclose()


@pytest.mark.parametrize(
    ("name", "options", "expected"),
    [
        ("localhost", "", 0),
        ("localhost", "?ssl_cert_reqs=none", 2),
        ("elsewhere.test", "?ssl_ca_certs={ca}", 0),
        ("elsewhere.test", "?ssl_ca_certs={ca}&ssl_check_hostname=false", 2),
    ],
    ids=["unknown-authority", "no-check", "other-name", "any-name"],
)
async def test_a_certificate_that_does_not_hold_is_refused_unless_told_otherwise(
    valkey: ValkeyProcess, authority: trustme.CA, authority_file: Path, name: str, options: str, expected: int
) -> None:
    async with freezing_proxy(valkey.port, tls=server_side(authority, name)) as proxy:
        assert (
            await num_connections(f"rediss://localhost:{proxy.port}/0{options.format(ca=authority_file)}") == expected
        )
