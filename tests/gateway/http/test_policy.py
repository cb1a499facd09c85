"""What holds on every route, the hot path's included."""

import re

import httpx
import pytest

from gateway.dashboard.login_brake import MAX_FAILURES
from tests.gateway.http.conftest import CORS_ORIGIN
from tests.support.gateways import ADMIN_KEY, Gateway

BEARER = {"Authorization": f"Bearer {ADMIN_KEY}"}
JSON = {"Content-Type": "application/json"}
POSTS = [
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/embeddings",
    "/v1/tokenize",
    "/v1/detokenize",
    "/v1/route",
    "/admin/v1/tenants",
]
GETS = ["/health", "/ready", "/metrics", "/v1/models", "/v1/usage", "/admin/v1/tenants", "/dashboard", "/openapi.json"]


def check_error(reply: httpx.Response, status: int) -> None:
    assert reply.status_code == status, reply.text
    assert set(reply.json()["error"]) == {"message", "type", "param", "code"}
    assert reply.headers["x-request-id"]


async def ask(gateway: Gateway, method: str, path: str, **content: object) -> httpx.Response:
    async with httpx.AsyncClient(base_url=gateway.origin, timeout=30) as client:
        return await client.request(method, path, **content)  # type: ignore[arg-type]


async def operations(gateway: Gateway) -> list[tuple[str, str]]:
    """Method and path of every documented operation, and of others."""
    document = (await ask(gateway, "GET", "/openapi.json")).json()
    found = [
        (method.upper(), re.sub(r"\{\w+\}", "x", path))
        for path, item in document["paths"].items()
        for method in item
        if method in ("get", "put", "post", "patch", "delete")
    ]
    assert set(found) >= {("POST", path) for path in POSTS}
    return [*found, *(("GET", path) for path in GETS), ("GET", "/nowhere")]


async def test_two_keys_are_refused_on_every_route(plain: Gateway) -> None:
    headers = [("authorization", f"Bearer {ADMIN_KEY}"), ("Authorization", "Bearer other")]
    for method, path in await operations(plain):
        reply = await ask(plain, method, path, headers=headers)
        assert reply.status_code == 400, (method, path, reply.text)
        assert "Authorization" in reply.json()["error"]["message"]
        assert reply.headers["x-request-id"]


async def test_an_encoded_body_is_415_on_every_route(plain: Gateway) -> None:
    headers = BEARER | JSON | {"Content-Encoding": "gzip"}
    for method, path in await operations(plain):
        reply = await ask(plain, method, path, headers=headers, content=b"\x1f\x8b")
        assert reply.status_code == 415, (method, path, reply.text)
        assert "Content-Encoding" in reply.json()["error"]["message"]


@pytest.mark.parametrize("content_type", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data"])
async def test_a_body_that_says_it_is_no_json_is_415(plain: Gateway, content_type: str) -> None:
    for path in POSTS:
        reply = await ask(plain, "POST", path, headers=BEARER | {"Content-Type": content_type}, content=b"{}")
        check_error(reply, 415)
        assert "application/json" in reply.json()["error"]["message"]


async def test_json_may_come_without_its_name(plain: Gateway) -> None:
    for i, content_type in enumerate((None, "application/json", "application/json; charset=utf-8", "Application/JSON")):
        headers = BEARER | ({"Content-Type": content_type} if content_type else {})
        body = b'{"name": "acme-%d", "tier": "free"}' % i
        assert (await ask(plain, "POST", "/admin/v1/tenants", headers=headers, content=body)).status_code == 201
        check_error(await ask(plain, "POST", "/v1/chat/completions", headers=headers, content=b"{}"), 403)


async def test_what_is_not_there_says_so_whatever_its_body(plain: Gateway) -> None:
    for path in ("/v1/uploads", "/v1/nothing"):
        reply = await ask(plain, "POST", path, headers=BEARER, files={"file": b"x"})
        check_error(reply, 404)


async def test_nothing_redirects_to_where_the_host_header_says(plain: Gateway) -> None:
    for path in ("/health/", "/v1/models/", "/admin/v1/tenants/", "//evil.example/"):
        reply = await ask(plain, "GET", path, headers=BEARER | {"Host": "evil.example"})
        assert reply.status_code == 404 and "location" not in reply.headers
    for path, login in (
        ("/dashboard", "/dashboard/login"),
        ("/dashboard/", "/dashboard/login?next=/dashboard/"),
        ("/dashboard//evil.example", "/dashboard/login?next=/dashboard//evil.example"),
    ):
        reply = await ask(plain, "GET", path, headers={"Host": "evil.example"})
        assert (reply.status_code, reply.headers["location"]) == (303, login)


async def test_head_is_get_without_the_body(plain: Gateway) -> None:
    for path in GETS:
        got, head = [await ask(plain, method, path, headers=BEARER) for method in ("GET", "HEAD")]
        assert (head.status_code, head.content) == (got.status_code, b"")
        assert head.headers.get("content-type") == got.headers.get("content-type")


async def test_options_and_405_say_what_a_path_takes(plain: Gateway) -> None:
    for path, allowed in (
        ("/v1/chat/completions", {"POST", "OPTIONS"}),
        ("/v1/models", {"GET", "HEAD", "OPTIONS"}),
        ("/admin/v1/tenants", {"GET", "HEAD", "POST", "OPTIONS"}),
        ("/dashboard/login", {"GET", "HEAD", "POST", "OPTIONS"}),
    ):
        options, wrong = [await ask(plain, method, path) for method in ("OPTIONS", "PUT")]
        assert (options.status_code, options.content) == (204, b"")
        check_error(wrong, 405)
        for reply in (options, wrong):
            assert set(reply.headers["allow"].split(", ")) == allowed
    assert (await ask(plain, "OPTIONS", "/nowhere")).status_code == 404


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/models"])
async def test_a_named_site_may_call_and_see_our_headers(proxied: Gateway, path: str) -> None:
    preflight = await ask(
        proxied,
        "OPTIONS",
        path,
        headers={
            "Origin": CORS_ORIGIN,
            "Access-Control-Request-Method": "POST",
            "Access-Control-Request-Headers": "authorization, content-type, x-stainless-lang",
        },
    )
    assert preflight.status_code == 200
    assert preflight.headers["access-control-allow-origin"] == CORS_ORIGIN
    assert "x-stainless-lang" in preflight.headers["access-control-allow-headers"]
    method = "POST" if path == "/v1/chat/completions" else "GET"
    reply = await ask(proxied, method, path, headers=BEARER | {"Origin": CORS_ORIGIN})
    assert reply.headers["access-control-allow-origin"] == CORS_ORIGIN
    exposed = reply.headers["access-control-expose-headers"]
    assert "x-ratelimit-remaining-tokens" in exposed and "x-tiergate-model" in exposed and "x-request-id" in exposed
    assert "access-control-allow-credentials" not in reply.headers


async def test_other_sites_may_not_call(proxied: Gateway, plain: Gateway) -> None:
    for gateway in (proxied, plain):
        reply = await ask(gateway, "GET", "/v1/models", headers=BEARER | {"Origin": "https://evil.example"})
        assert "access-control-allow-origin" not in reply.headers


async def guess(gateway: Gateway, address: str) -> int:
    headers = {"X-Forwarded-For": address}
    return (await ask(gateway, "POST", "/dashboard/login", data={"key": "guess"}, headers=headers)).status_code


async def test_an_address_that_a_client_writes_itself_does_not_lift_its_brake(plain: Gateway) -> None:
    statuses = [await guess(plain, f"192.0.2.{i}") for i in range(MAX_FAILURES + 1)]
    assert statuses == [401] * MAX_FAILURES + [429]


async def test_behind_a_trusted_proxy_each_address_has_its_own_brake(proxied: Gateway) -> None:
    statuses = [await guess(proxied, "192.0.2.1") for _ in range(MAX_FAILURES + 1)]
    assert statuses == [401] * MAX_FAILURES + [429]
    assert await guess(proxied, "192.0.2.1, 198.51.100.1") == 401


async def test_the_scheme_that_a_trusted_proxy_tells_makes_the_cookie_secure(proxied: Gateway, plain: Gateway) -> None:
    headers = {"X-Forwarded-For": "192.0.2.1", "X-Forwarded-Proto": "https"}
    for gateway, is_secure in ((proxied, True), (plain, False)):
        reply = await ask(gateway, "POST", "/dashboard/login", data={"key": ADMIN_KEY}, headers=headers)
        assert ("Secure" in reply.headers["set-cookie"]) == is_secure
