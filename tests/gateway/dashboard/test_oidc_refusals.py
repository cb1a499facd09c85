"""What a hostile provider, or somebody between, may send: it begins no visit, ends none, and is told on a page."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from aiohttp import web
from sqlalchemy import select

from gateway.dashboard.cookies import COOKIE
from gateway.domain.visits.models import Visit
from tests.support.consoles import audited
from tests.support.gateways import ADMIN_KEY, DEADLINE_S, Gateway, running_gateway
from tests.support.hostile_oidc import (
    LOGOUT_EVENT,
    HostileProvider,
    SigningKey,
    altered,
    begin,
    end,
    flood,
    hang,
    hostile_provider,
    unsigned,
    with_public_key_as_secret,
)
from tests.support.oidc_providers import oidc_settings
from tests.support.valkey import ValkeyProcess

SETTINGS = "/dashboard/settings"


@dataclass(frozen=True)
class Scene:
    gateway: Gateway
    provider: HostileProvider
    http: httpx.AsyncClient
    """Of a browser in which a key is logged in."""

    async def log_in(self, **changed: Any) -> httpx.Response:
        """As the provider's honest reader, but for these claims."""
        begun = await begin(self.provider, self.http)
        self.provider.token = self.provider.key.sign(self.provider.claims(**{"nonce": begun.nonce, **changed}))
        return await end(self.http, begun.state)

    async def people(self) -> list[Visit]:
        async with self.gateway.services.sessions() as session:
            return list(await session.scalars(select(Visit).where(Visit.person_id.is_not(None))))

    async def assert_refused(self, reply: httpx.Response, status: int, *words: str) -> None:
        """On a page, and nothing has changed: the key's visit goes on."""
        assert reply.status_code == status and "You are not logged in" in reply.text, reply.text
        assert all(word in reply.text for word in words), reply.text
        assert COOKIE not in reply.cookies and await self.people() == []
        assert (await self.http.get(SETTINGS)).status_code == 200


@pytest.fixture
async def scene(tmp_path: Path, valkey: ValkeyProcess) -> AsyncIterator[Scene]:
    async with hostile_provider() as provider:
        settings = oidc_settings(tmp_path, valkey, provider.issuer)
        async with running_gateway(settings) as gateway, httpx.AsyncClient(base_url=gateway.origin, timeout=60) as http:
            await gateway.post("/tenants", {"name": "acme", "tier": "pro"})
            assert (await http.post("/dashboard/login", data={"key": ADMIN_KEY})).status_code == 303
            yield Scene(gateway, provider, http)


CLAIMS: dict[str, tuple[dict[str, Any], int, str]] = {
    "expired": ({"exp": int(time.time()) - 3600}, 403, "has expired"),
    "not yet valid": ({"nbf": int(time.time()) + 3600}, 403, "not valid yet"),
    "of the future": ({"iat": int(time.time()) + 3600}, 403, "not valid yet"),
    "other audience": ({"aud": "somebody-else"}, 403, "for another client"),
    "one of several audiences": ({"aud": ["tiergate", "other"]}, 403, "`azp`"),
    "other party": ({"azp": "other"}, 403, "`azp`"),
    "other issuer": ({"iss": "https://other.example"}, 403, "another issuer"),
    "other nonce": ({"nonce": "of-another-login"}, 403, "`nonce`"),
    "other access token": ({"at_hash": "AAAA"}, 403, "`at_hash`"),
    "no nonce": ({"nonce": None}, 403, "`nonce`"),
    "no subject": ({"sub": None}, 403, "`sub`"),
    "empty subject": ({"sub": ""}, 403, "`sub`"),
    "no expiry": ({"exp": None}, 403, "`exp`"),
    "no roles": ({"roles": None}, 403, "have no role here"),
    "odd roles": ({"roles": [{"operators": 1}, 7]}, 403, "have no role here"),
    "no tenant": ({"tenant": None}, 403, "belong to no tenant"),
    "two tenants": ({"tenant": ["acme", "platform"]}, 403, "belong to 2 tenants"),
    "unknown tenant": ({"tenant": "nowhere"}, 403, "nowhere"),
}


@pytest.mark.parametrize("part", [0, 1])
async def test_tokens_whose_claims_are_not_for_us_are_refused(scene: Scene, part: int) -> None:
    """In two parts: the brake lets ten logins fail."""
    for changed, status, words in list(CLAIMS.values())[part::2]:
        await scene.assert_refused(await scene.log_in(**changed), status, words)
    assert "You are logged in" in (await scene.log_in()).text and len(await scene.people()) == 1


Forge = Callable[[HostileProvider, dict[str, Any]], str]
FORGED: dict[str, tuple[Forge, str]] = {
    "unsigned": (lambda _, claims: unsigned(claims), "`alg`"),
    "signed with the public key": (lambda it, claims: with_public_key_as_secret(it.key, claims), "`alg`"),
    "signed by another": (lambda _, claims: SigningKey("first").sign(claims), "not signed by it"),
    "another kind of key": (lambda _, claims: SigningKey("first", "ES256").sign(claims), "does not publish"),
    "unknown key": (lambda _, claims: SigningKey("unknown").sign(claims), "does not publish"),
    "altered": (lambda it, claims: altered(it.key.sign(claims), claims | {"roles": ["operators"]}), "not signed by it"),
    "no token": (lambda _, claims: "what?", "cannot be read"),
    "too long": (lambda it, claims: it.key.sign({**claims, "more": "x" * 70_000}), "cannot be read"),
}


async def test_forged_tokens_are_refused(scene: Scene) -> None:
    for forge, words in FORGED.values():
        begun = await begin(scene.provider, scene.http)
        scene.provider.token = forge(scene.provider, scene.provider.claims(nonce=begun.nonce))
        await scene.assert_refused(await end(scene.http, begun.state), 403, words)
    assert "You are logged in" in (await scene.log_in()).text and len(await scene.people()) == 1


async def test_the_state_of_another_browser_or_of_a_login_that_has_ended_leads_nowhere(scene: Scene) -> None:
    begun = await begin(scene.provider, scene.http)
    scene.provider.token = scene.provider.key.sign(scene.provider.claims(nonce=begun.nonce))
    async with httpx.AsyncClient(base_url=scene.gateway.origin, timeout=60) as victim:
        lured = await end(victim, begun.state)
        assert lured.status_code == 400 and "not begun in this browser" in lured.text
        assert COOKIE not in lured.cookies and "/token" not in scene.provider.num_asked
    for state in ("", "made-up", "A" * 43, begun.state[:-1] + ("A" if begun.state[-1] != "A" else "B"), "x" * 9999):
        await scene.assert_refused(await end(scene.http, state), 400, "not begun in this browser")
    copied = dict(scene.http.cookies)
    assert "You are logged in" in (await end(scene.http, begun.state)).text
    assert "not begun in this browser" in (await end(scene.http, begun.state)).text
    # A copy of the browser's cookies, and then a provider that takes a code twice.
    async with httpx.AsyncClient(base_url=scene.gateway.origin, timeout=60, cookies=copied) as thief:
        twice = await end(thief, begun.state)
        assert twice.status_code == 403 and "used already" in twice.text
        scene.provider.answers["/token"] = lambda _: _granted(scene.provider)
        replayed = await end(thief, begun.state)
        assert replayed.status_code == 409 and "used already" in replayed.text
    assert len(await scene.people()) == 1


async def _granted(provider: HostileProvider) -> web.StreamResponse:
    """Whatever the code."""
    return web.json_response({"id_token": provider.token})


async def test_a_nonce_that_was_answered_once_answers_no_other_login(scene: Scene) -> None:
    assert "You are logged in" in (await scene.log_in()).text
    begun = await begin(scene.provider, scene.http)
    replayed = await end(scene.http, begun.state)
    assert replayed.status_code == 403 and "`nonce`" in replayed.text
    assert len(await scene.people()) == 1


async def test_the_provider_may_refuse_and_another_may_not_answer_for_it(scene: Scene) -> None:
    begun = await begin(scene.provider, scene.http)
    denied = await end(scene.http, begun.state, error="access_denied<b>")
    await scene.assert_refused(denied, 403, "access_denied&lt;b&gt;")
    begun = await begin(scene.provider, scene.http)
    await scene.assert_refused(await end(scene.http, begun.state, iss="https://other.example"), 403, "another provider")
    begun = await begin(scene.provider, scene.http)
    await scene.assert_refused(await end(scene.http, begun.state, code=""), 403, "no code")
    assert "/token" not in scene.provider.num_asked


async def redirect(_request: web.Request) -> web.StreamResponse:
    raise web.HTTPFound("http://169.254.169.254/latest")


async def fail(_request: web.Request) -> web.StreamResponse:
    return web.json_response({"error": "<script>"}, status=500)


async def talk(_request: web.Request) -> web.StreamResponse:
    return web.Response(text="<html>Welcome</html>")


BROKEN: dict[str, tuple[str, Any, str]] = {
    "keys unreachable": ("/jwks", fail, "key set cannot be read"),
    "keys hang": ("/jwks", hang, "did not answer in time"),
    "keys are a page": ("/jwks", talk, "key set is not as OpenID"),
    "tokens hang": ("/token", hang, "did not answer in time"),
    "50 MB of tokens": ("/token", flood, "longer than"),
    "tokens are elsewhere": ("/token", redirect, "redirects are not followed"),
    "tokens fail": ("/token", fail, "answers 500 (&lt;script&gt;)"),
    "tokens are a page": ("/token", talk, "token endpoint answered is not as OpenID"),
}


async def test_a_provider_that_does_not_work_is_told_and_recovers(scene: Scene) -> None:
    for path, answer, words in BROKEN.values():
        scene.provider.answers[path] = answer

        async def is_told(words: str = words) -> bool:
            reply = await scene.log_in()
            await scene.assert_refused(reply, 502)
            return words in reply.text

        # A failure is kept for a moment, and told to whoever asks.
        await until(is_told)
        scene.provider.answers.clear()
    await until(lambda: is_let_in(scene))
    assert len(await scene.people()) == 1


async def is_let_in(scene: Scene) -> bool:
    return "You are logged in" in (await scene.log_in()).text


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not await condition():  # noqa: ASYNC110
            await asyncio.sleep(0.2)


async def test_a_discovery_document_of_another_provider_is_refused(scene: Scene) -> None:
    for told, words in (
        ({"issuer": "https://other.example"}, "calls itself"),
        ({"token_endpoint": "ftp://127.0.0.1/token"}, "without https"),
        ({"jwks_uri": 7}, "not as OpenID"),
    ):
        scene.provider.discovery = told

        async def is_told(words: str = words) -> bool:
            reply = await scene.http.get("/dashboard/oidc/login")
            await scene.assert_refused(reply, 502)
            return words in reply.text

        await until(is_told)


async def test_keys_are_kept_and_read_anew_for_one_that_is_unknown(scene: Scene) -> None:
    provider = scene.provider
    for _ in range(2):
        assert "You are logged in" in (await scene.log_in()).text
    assert provider.num_asked["/jwks"] == 1
    old, provider.key = provider.key, SigningKey("second", "ES256")
    provider.published = [old, provider.key]
    assert "You are logged in" in (await scene.log_in()).text
    assert provider.num_asked["/jwks"] == 2
    # Whoever makes up keys does not make us ask for each.
    for _ in range(3):
        provider.key = SigningKey("made up", "ES256")
        assert "does not publish" in (await scene.log_in()).text
    assert provider.num_asked["/jwks"] == 3


async def test_a_role_that_was_taken_away_is_gone_with_the_next_login(scene: Scene) -> None:
    for roles, keys in ((["admins"], 200), (["readers"], 403)):
        assert "You are logged in" in (await scene.log_in(roles=roles)).text
        assert (await scene.http.get("/dashboard/keys")).status_code == keys


async def test_logins_that_fail_are_braked(scene: Scene) -> None:
    replies = [await scene.log_in(aud="other") for _ in range(11)]
    assert [reply.status_code for reply in replies] == [403] * 10 + [429]
    assert int(replies[-1].headers["retry-after"]) > 0 and scene.provider.num_asked["/token"] == 10


async def test_logins_that_cost_the_provider_nothing_are_not_braked(scene: Scene) -> None:
    for number in range(12):
        begun = await begin(scene.provider, scene.http)
        said = {"error": "access_denied"} if number % 2 else {"iss": "https://other.example", "code": "c"}
        reply = await scene.http.get("/dashboard/oidc/callback", params={"state": begun.state, **said})
        assert reply.status_code == 403 and "You are not logged in" in reply.text
    assert "/token" not in scene.provider.num_asked
    assert "You are logged in" in (await scene.log_in()).text


LOGOUTS: dict[str, dict[str, Any]] = {
    "expired": {"exp": int(time.time()) - 3600},
    "other audience": {"aud": "other"},
    "other issuer": {"iss": "https://other.example"},
    "no event": {"events": {}},
    "odd event": {"events": {LOGOUT_EVENT: 1}},
    "an ID token": {"nonce": "n"},
    "of nobody": {"sub": None},
    "no id": {"jti": None},
}


async def test_a_logout_token_that_is_none_ends_nothing_and_a_right_one_the_persons_visits_once(scene: Scene) -> None:
    provider = scene.provider

    async def send(token: str) -> httpx.Response:
        return await scene.http.post("/dashboard/oidc/backchannel-logout", data={"logout_token": token})

    assert "You are logged in" in (await scene.log_in(sid="s-1")).text
    forged = [unsigned(provider.logout_claims()), SigningKey("first").sign(provider.logout_claims()), "", "what?"]
    forged += [provider.key.sign(provider.logout_claims(**changed)) for changed in LOGOUTS.values()]
    for token in forged:
        reply = await send(token)
        assert reply.status_code == 400 and reply.json()["error"] == "invalid_request", reply.text
    for others in ({"sub": "somebody"}, {"sub": None, "sid": "s-2"}, {"sid": "s-2"}, {"iat": int(time.time()) - 100}):
        assert (await send(provider.key.sign(provider.logout_claims(**others)))).status_code == 200
    assert len(await scene.people()) == 1
    reply = await send(provider.key.sign(provider.logout_claims(sub=None, sid="s-1")))
    assert reply.status_code == 200 and reply.headers["cache-control"] == "no-store"
    assert await scene.people() == [] and len(await audited(scene.gateway, "visit.end")) == 1


async def test_without_a_provider_there_is_no_such_login(gateway: Gateway) -> None:
    async with httpx.AsyncClient(base_url=gateway.origin) as http:
        assert "oidc" not in (await http.get("/dashboard/login")).text
        for path in ("login", "callback?state=" + "A" * 43):
            assert (await http.get(f"/dashboard/oidc/{path}")).status_code in (400, 404)
        assert (await http.post("/dashboard/oidc/backchannel-logout", data={"logout_token": "x"})).status_code == 404
