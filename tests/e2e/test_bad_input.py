"""Every mistake gets OpenAI's error shape, the right status and a message that says what to change."""

from collections.abc import Iterator

import httpx
import pytest

from tests.support.platform import Platform, wait_until

HI = [{"role": "user", "content": "Hi!"}]
LONG = [{"role": "user", "content": "word " * 5000}]


@pytest.fixture
def client(platform: Platform) -> Iterator[httpx.Client]:
    headers = {"Authorization": f"Bearer {platform.enterprise_key}"}
    with httpx.Client(base_url=platform.base_url, headers=headers, timeout=30) as opened:
        yield opened


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        ({"model": "auto"}, 400, "messages"),
        ({"model": "auto", "messages": []}, 400, "messages"),
        ({"model": "auto", "messages": "Hi"}, 400, "messages"),
        ({"model": "auto", "messages": [{"role": "friend", "content": "Hi"}]}, 400, "messages[0].role"),
        ({"model": "auto", "messages": [{"role": "user", "content": ""}]}, 400, "messages[0].content"),
        ({"model": "auto", "messages": HI, "temperature": "hot"}, 400, "temperature"),
        ({"model": "auto", "messages": HI, "temperature": 3}, 400, "temperature"),
        ({"model": "auto", "messages": HI, "max_tokens": 0}, 400, "max_tokens"),
        ({"model": "auto", "messages": HI, "max_token": 5}, 400, "max_token"),
        ({"model": "auto", "messages": LONG}, 400, "messages"),
        ({"model": "no-such-model", "messages": HI}, 404, "model"),
        ({"model": 7, "messages": HI}, 400, "model"),
    ],
)
def test_a_bad_body_names_the_field(client: httpx.Client, body: object, status: int, param: str) -> None:
    reply = client.post("/chat/completions", json=body)
    assert reply.status_code == status, reply.text
    error = reply.json()["error"]
    assert error["param"] == param
    assert error["message"]
    assert set(error) == {"message", "type", "param", "code"}


@pytest.mark.parametrize(
    "content", [b"{", b"", b"\xff\xfe", b'{"model": "auto", "messages": [{"role": "user", "content": "\xff"}]}']
)
def test_what_is_not_json_in_utf8_is_refused(client: httpx.Client, content: bytes) -> None:
    reply = client.post("/chat/completions", content=content)
    assert reply.status_code == 400
    assert "JSON" in reply.json()["error"]["message"]


def test_a_body_over_the_limit_is_refused(client: httpx.Client) -> None:
    reply = client.post("/chat/completions", content=b'{"model": "' + b"a" * (9 * 2**20) + b'"}')
    assert reply.status_code == 413
    assert reply.json()["error"]["message"]


@pytest.mark.parametrize("authorization", [None, "Bearer nonsense", "Bearer tg-abcdefgh-" + "a" * 32, "Basic YTpi"])
def test_a_bad_key_is_401(platform: Platform, authorization: str | None) -> None:
    headers = {"Authorization": authorization} if authorization else {}
    reply = httpx.post(f"{platform.base_url}/chat/completions", json={"model": "auto", "messages": HI}, headers=headers)
    assert reply.status_code == 401
    assert reply.json()["error"]["code"] == "invalid_api_key"


def test_a_revoked_key_is_401(platform: Platform) -> None:
    with platform.admin() as admin:
        tenant = admin.post("/tenants", json={"name": "revoked", "tier": "pro"}).raise_for_status().json()
        made = admin.post("/keys", json={"tenant_id": tenant["id"], "name": "k", "scopes": ["inference"]}).json()
        headers = {"Authorization": f"Bearer {made['key']}"}
        assert httpx.get(f"{platform.base_url}/models", headers=headers).status_code == 200
        admin.delete(f"/keys/{made['id']}").raise_for_status()
    wait_until(lambda: httpx.get(f"{platform.base_url}/models", headers=headers).status_code == 401, deadline_s=3)


@pytest.mark.parametrize("path", ["/images/generations", "/moderations", "/audio/speech", "/uploads"])
def test_what_openai_has_and_we_do_not_is_refused_by_name(client: httpx.Client, path: str) -> None:
    reply = client.post(path, json={})
    assert reply.status_code == 404
    assert reply.json()["error"]["code"] == "unsupported_endpoint"
