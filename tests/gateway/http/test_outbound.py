"""Addresses that tenants give: only public ones are connected to, whatever a name means from one moment to the next."""

import asyncio
import gzip
import socket
import threading
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from ipaddress import ip_address, ip_network

import pytest
from aiohttp import web
from aiohttp.abc import AbstractResolver, ResolveResult

from gateway.http.addresses import is_allowed
from gateway.http.errors import InvalidRequest
from gateway.http.outbound import Outbound, OutboundFailed

LOOPBACK = (ip_network("127.0.0.0/8"),)


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "127.9.9.9", "10.0.0.1", "172.16.0.1", "172.31.255.255", "192.168.1.1", "169.254.169.254"),
        *("100.64.0.1", "0.0.0.0", "0.1.2.3", "192.0.0.1", "192.0.2.1", "198.18.0.1", "224.0.0.1", "240.0.0.1"),
        *("255.255.255.255", "::", "::1", "fe80::1", "fc00::1", "fd00:ec2::254", "ff02::1", "2001:db8::1"),
        *("::ffff:127.0.0.1", "::ffff:169.254.169.254", "::ffff:10.0.0.1", "::127.0.0.1", "::10.0.0.1"),
        *(
            "64:ff9b::7f00:1",
            "64:ff9b::a9fe:a9fe",
            "2002:7f00:1::",
            "2002:a00:1::1",
            "2001:0:4136:e378:8000:63bf:80ff:fffe",
        ),
    ],
)
def test_what_is_not_public_is_not_allowed(address: str) -> None:
    assert not is_allowed(ip_address(address), ())


@pytest.mark.parametrize(
    "address", ["1.1.1.1", "93.184.216.34", "2606:4700::1111", "::ffff:1.1.1.1", "64:ff9b::101:101"]
)
def test_what_is_public_is_allowed(address: str) -> None:
    assert is_allowed(ip_address(address), ())


def test_the_operator_may_allow_private_networks_by_name() -> None:
    allowed = (ip_network("10.1.0.0/16"), ip_network("::1/128"))
    assert is_allowed(ip_address("10.1.2.3"), allowed)
    assert is_allowed(ip_address("::ffff:10.1.2.3"), allowed)
    assert is_allowed(ip_address("::1"), allowed)
    assert not is_allowed(ip_address("10.2.0.1"), allowed)


async def _answer(request: web.Request) -> web.StreamResponse:
    kind = request.match_info["kind"]
    if kind == "redirect":
        raise web.HTTPFound("http://169.254.169.254/latest/meta-data")
    if kind == "large":
        return web.Response(body=b"x" * 5000)
    if kind == "bomb":
        return web.Response(body=gzip.compress(b"x" * 10**6), headers={"content-encoding": "gzip"})
    if kind == "silent":
        await asyncio.sleep(3600)
    if kind == "drip":
        response = web.StreamResponse()
        await response.prepare(request)
        while True:
            await response.write(b"x")
            await asyncio.sleep(0.05)
    return web.Response(text="thanks", status=201)


@pytest.fixture
async def port() -> AsyncIterator[int]:
    app = web.Application()
    app.router.add_post("/{kind}", _answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    assert site._server is not None
    yield site._server.sockets[0].getsockname()[1]  # type: ignore[attr-defined]
    await runner.cleanup()


async def refusal(outbound: Outbound, url: str) -> str:
    try:
        with pytest.raises(OutboundFailed) as failed:
            await outbound.post(url, b"{}", {})
    finally:
        await outbound.close()
    return str(failed.value)


async def test_an_answer_comes_back(port: int) -> None:
    outbound = Outbound(allowed_private=LOOPBACK)
    answer = await outbound.post(f"http://127.0.0.1:{port}/fine", b"{}", {})
    await outbound.close()
    assert (answer.status, answer.body) == (201, b"thanks")


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("redirect", "redirects are not followed"),
        ("large", "longer than 4096 bytes"),
        ("silent", "did not answer in time"),
        ("drip", "did not answer in time"),
    ],
)
async def test_what_is_too_much_or_leads_elsewhere_is_refused(port: int, kind: str, words: str) -> None:
    outbound = Outbound(allowed_private=LOOPBACK, total_s=0.5, max_answer_bytes=4096)
    assert words in await refusal(outbound, f"http://127.0.0.1:{port}/{kind}")


async def test_a_small_answer_does_not_become_a_large_one(port: int) -> None:
    outbound = Outbound(allowed_private=LOOPBACK, max_answer_bytes=4096)
    assert len((await outbound.post(f"http://127.0.0.1:{port}/bomb", b"{}", {})).body) < 4096
    await outbound.close()


class Rebinding(AbstractResolver):
    """A name that meant a public address when somebody looked first, and means this machine now."""

    def __init__(self, *addresses: str) -> None:
        self._addresses = list(addresses)

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        address = self._addresses.pop(0) if len(self._addresses) > 1 else self._addresses[0]
        kind = socket.AF_INET6 if ":" in address else socket.AF_INET
        return [
            ResolveResult(hostname=host, host=address, port=port, family=kind, proto=0, flags=socket.AI_NUMERICHOST)
        ]

    async def close(self) -> None:
        return


@pytest.mark.parametrize("address", ["127.0.0.1", "::1", "::ffff:127.0.0.1", "169.254.169.254"])
async def test_a_name_is_checked_as_what_it_means_when_it_is_connected_to(port: int, address: str) -> None:
    outbound = Outbound(resolver=Rebinding(address))
    url = f"http://hooks.example.com:{port}/fine"
    outbound.check_url(url)
    assert await refusal(outbound, url) == "its address is not a public one"


async def test_each_request_asks_for_the_name_anew(port: int) -> None:
    outbound = Outbound(allowed_private=LOOPBACK, resolver=Rebinding("127.0.0.1", "10.0.0.1"))
    url = f"http://hooks.example.com:{port}/fine"
    assert (await outbound.post(url, b"{}", {})).status == 201
    assert await refusal(outbound, url) == "its address is not a public one"


@pytest.mark.parametrize(
    "url",
    [
        *(
            "ftp://example.com/",
            "file:///etc/passwd",
            "example.com",
            "http://",
            "http:///x",
            "https://a:b@example.com/",
        ),
        *(
            "http://127.0.0.1/",
            "http://[::1]/",
            "http://[::ffff:7f00:1]/",
            "http://169.254.169.254/",
            "http://x:99999/",
        ),
        *("http://example.com/#a", "http://exa\nmple.com/", "http://example.com/" + "x" * 2000),
    ],
)
async def test_a_bad_url_is_refused_at_once_and_again_when_it_is_used(url: str) -> None:
    outbound = Outbound()
    with pytest.raises(InvalidRequest) as refused:
        outbound.check_url(url)
    assert refused.value.param == "url"
    await refusal(outbound, url)


@pytest.mark.parametrize("host", ["2130706433", "0x7f000001", "127.1", "0177.0.0.1", "localhost"])
async def test_other_spellings_of_this_machine_are_not_connected_to(port: int, host: str) -> None:
    await refusal(Outbound(), f"http://{host}:{port}/fine")


async def test_what_a_tenant_is_told_of_a_failure_names_nothing_of_ours() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
    words = await refusal(Outbound(allowed_private=LOOPBACK), f"http://127.0.0.1:{port}/")
    assert words == "it cannot be connected to"


async def test_names_are_not_looked_up_on_the_threads_of_others(port: int) -> None:
    let_go = threading.Event()
    loop = asyncio.get_running_loop()
    loop.set_default_executor(ThreadPoolExecutor(1))
    busy = loop.run_in_executor(None, let_go.wait)
    outbound = Outbound(allowed_private=(*LOOPBACK, ip_network("::1/128")))
    try:
        assert (await outbound.post(f"http://localhost:{port}/fine", b"{}", {})).status == 201
    finally:
        let_go.set()
        await busy
        await outbound.close()
