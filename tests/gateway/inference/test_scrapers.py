"""Who may read the gateway's `/metrics`."""

from pathlib import Path

import httpx
import pytest
from pydantic import SecretStr
from starlette.requests import Request

from gateway.http.errors import Forbidden, Unauthenticated
from gateway.inference.scrapers import check_scraper
from tests.support.gateways import make_settings, running_gateway
from tests.support.valkey import ValkeyProcess

KEY = "the-metrics-key"


def request(client: tuple[str, int] | None, **headers: str) -> Request:
    raw = [(name.encode(), value.encode()) for name, value in headers.items()]
    return Request({"type": "http", "method": "GET", "path": "/metrics", "headers": raw, "client": client})


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.10", "::1", "::ffff:127.0.0.1"])
def test_this_machine_needs_no_key_where_none_is_set(host: str) -> None:
    check_scraper(request((host, 1)), None)


@pytest.mark.parametrize("client", [("10.0.0.7", 1), ("fd00::2", 1), ("::ffff:10.0.0.7", 1), ("", 0), None])
def test_another_machine_needs_a_key(client: tuple[str, int] | None) -> None:
    with pytest.raises(Forbidden, match="TIERGATE_METRICS_KEY"):
        check_scraper(request(client), None)


@pytest.mark.parametrize("name", ["x-forwarded-for", "forwarded", "x-real-ip"])
def test_what_a_proxy_passes_on_is_not_this_machines(name: str) -> None:
    with pytest.raises(Forbidden):
        check_scraper(request(("127.0.0.1", 1), **{name: "127.0.0.1"}), None)


@pytest.mark.parametrize("host", ["127.0.0.1", "10.0.0.7"])
def test_a_key_that_is_set_is_asked_of_everybody(host: str) -> None:
    check_scraper(request((host, 1), authorization=f"Bearer {KEY}"), SecretStr(KEY))
    for sent in ({}, {"authorization": KEY}, {"authorization": "Bearer x"}):
        with pytest.raises(Unauthenticated):
            check_scraper(request((host, 1), **sent), SecretStr(KEY))


async def test_the_route_asks_for_it(tmp_path: Path, valkey: ValkeyProcess) -> None:
    settings = make_settings(tmp_path, valkey.url, metrics_key=KEY)
    async with running_gateway(settings) as gateway, httpx.AsyncClient(base_url=gateway.origin) as client:
        assert (await client.get("/metrics")).status_code == 401
        reply = await client.get("/metrics", headers={"Authorization": f"Bearer {KEY}"})
        assert reply.status_code == 200 and "tiergate_" in reply.text
        assert (await client.get("/health")).status_code == 200
