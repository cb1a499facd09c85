"""People log in to the console with a real OpenID provider, and are logged out by it, by themselves and by others."""

from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import select, update

from gateway.clock import utc_now
from gateway.dashboard.cookies import COOKIE
from gateway.domain.audit.verification import verify
from gateway.domain.visits.models import Visit
from tests.support.accessibility import assert_well_shown
from tests.support.browser import open_tab
from tests.support.consoles import audited, visit
from tests.support.gateways import ADMIN_KEY
from tests.support.oidc_providers import Browser, OidcScene, oidc_scene
from tests.support.valkey import ValkeyProcess

SETTINGS = "/dashboard/settings"
VISITS = f"{SETTINGS}/visits"


@pytest.fixture
async def scene(tmp_path: Path, valkey: ValkeyProcess) -> AsyncIterator[OidcScene]:
    async with oidc_scene(tmp_path, valkey) as running:
        yield running


async def visits_in(scene: OidcScene) -> list[Visit]:
    async with scene.gateway.services.sessions() as session:
        return list(await session.scalars(select(Visit)))


async def is_in(browser: Browser) -> bool:
    return (await browser.http.get(SETTINGS)).status_code == 200


async def test_what_people_see_follows_from_their_roles(scene: OidcScene) -> None:
    other = await scene.gateway.post("/tenants", {"name": "other", "tier": "free"})
    async with scene.browser() as olga, scene.browser() as ada, scene.browser() as rita:
        for browser, name in ((olga, "olga"), (ada, "ada"), (rita, "rita")):
            assert "/dashboard/oidc/login" in await browser.page("/dashboard/login")
            shown = await browser.log_in(name)
            assert shown.status_code == 200 and f'url={SETTINGS}"' in shown.text, shown.text
            assert f"{name}@example.com" in await browser.page(SETTINGS)
        assert "other" in await olga.page("/dashboard/tenants")
        page = await ada.page("/dashboard/keys")
        assert "other" not in page and "acme" in page
        assert (await ada.http.get(f"/dashboard/tenants/{other['id']}")).status_code == 404
        assert "your login does not give you" in (await rita.page("/dashboard/keys", status=403)).lower()
        for browser in (ada, rita):
            assert (await browser.http.get(VISITS)).status_code == 403


@pytest.mark.parametrize(
    ("name", "words"),
    [("nemo", ("nemo@example.com", "have no role here", "`roles`", "operators")), ("lost", ("nowhere",))],
)
async def test_who_has_no_place_here_is_told_what_to_ask_for(
    scene: OidcScene, name: str, words: tuple[str, ...]
) -> None:
    async with scene.browser() as browser:
        refused = await browser.log_in(name)
        assert refused.status_code == 403 and all(word in refused.text for word in words), refused.text
        assert COOKIE not in browser.http.cookies
    assert await visits_in(scene) == []


async def test_a_visit_ends_when_it_is_idle_and_at_its_end_whatever_is_asked(scene: OidcScene) -> None:
    async with scene.browser() as browser:
        for ended in ({"idle_until": utc_now()}, {"expires_at": utc_now()}):
            await browser.log_in("rita")
            assert await is_in(browser)
            async with scene.gateway.services.sessions.begin() as session:
                await session.execute(update(Visit).values(**ended))
            assert not await is_in(browser)


async def test_to_look_at_a_page_prolongs_the_visit(scene: OidcScene) -> None:
    async with scene.browser() as browser:
        await browser.log_in("rita")
        [visit] = await visits_in(scene)
        soon = utc_now() + timedelta(minutes=5)
        async with scene.gateway.services.sessions.begin() as session:
            await session.execute(update(Visit).values(idle_until=soon))
        assert await is_in(browser)
        [prolonged] = await visits_in(scene)
        assert prolonged.idle_until is not None and prolonged.idle_until > soon + timedelta(minutes=30)
        assert prolonged.expires_at == visit.expires_at


async def test_logging_out_leads_to_the_providers_logout_and_back(scene: OidcScene) -> None:
    async with scene.browser() as browser:
        await browser.log_in("ada")
        page = (await browser.log_out()).text
        assert await visits_in(scene) == [] and not await is_in(browser)
        url = page.partition('href="' + scene.issuer)[2].partition('"')[0].replace("&amp;", "&")
        end = await browser.log_out_at_provider(scene.issuer + url)
        assert str(end.url) == f"{scene.gateway.origin}/dashboard/login"
        # The provider has forgotten her, and asks again.
        reply = await browser.follow(await browser.http.get("/dashboard/oidc/login"))
        assert reply.url.path.startswith("/interaction/")


async def test_the_provider_ends_the_visits_of_its_session_by_the_back_channel(scene: OidcScene) -> None:
    async with scene.browser() as ada, scene.browser() as elsewhere, scene.browser() as rita:
        for browser, name in ((ada, "ada"), (elsewhere, "ada"), (rita, "rita")):
            await browser.log_in(name)
        end = await ada.log_out_at_provider(f"{scene.issuer}/session/end")
        assert end.status_code == 200
        # The provider waits for our answer before it gives its own.
        assert [await is_in(browser) for browser in (ada, elsewhere, rita)] == [False, True, True]
    [row] = await audited(scene.gateway, "visit.end")
    assert row["detail"] == {"num_visits": 1, "by": "identity provider"} and row["tenant_id"] is not None
    assert row["object_id"] in {row["object_id"] for row in await audited(scene.gateway, "person.login")}


async def test_a_person_ends_the_other_visits_and_an_operator_anybodys(scene: OidcScene) -> None:
    async with (
        scene.browser() as ada,
        scene.browser() as elsewhere,
        scene.browser() as rita,
        visit(scene.gateway, ADMIN_KEY) as with_key,
        scene.browser() as olga,
    ):
        for browser, name in ((ada, "ada"), (elsewhere, "ada"), (rita, "rita"), (olga, "olga")):
            await browser.log_in(name)
        assert (await ada.send(f"{SETTINGS}/end-others")).status_code == 303
        assert [await is_in(browser) for browser in (ada, elsewhere, rita)] == [True, False, True]
        page = await olga.page(VISITS)
        for who in ("ada@example.com", "rita@example.com", "olga@example.com"):
            assert f">{who}</th>" in page
        [of_ada] = [each for each in await visits_in(scene) if f"visits/{each.id}/end" in page and each.person_id][1:2]
        assert (await olga.send(f"{VISITS}/{of_ada.id}/end")).status_code == 303
        assert sorted([await is_in(ada), await is_in(rita)]) == [False, True]
        assert (await olga.send(f"{VISITS}/end-all")).status_code == 303
        assert not await is_in(ada) and not await is_in(rita) and await is_in(olga)
        assert (await with_key.http.get(SETTINGS)).status_code == 303


async def test_the_audit_log_names_the_person_and_holds(scene: OidcScene) -> None:
    async with scene.browser() as olga, scene.browser() as ada:
        await olga.log_in("olga")
        await ada.log_in("ada")
        await olga.send("/dashboard/tenants/new", name="new", tier="free")
        [created] = [row for row in await audited(scene.gateway, "tenant.create") if row["actor_subject"]]
        assert (created["actor_subject"], created["actor_email"]) == ("olga", "olga@example.com")
        assert created["actor_key_id"] is None
        assert {row["object_id"] for row in await audited(scene.gateway, "person.login")}
        assert "olga@example.com" in await olga.page("/dashboard/audit?actor=olga@example.com")
        # A tenant sees its own people, and not who the platform's operators are.
        limits = {"name": "acme", "tier": "free"}
        [acme] = [each for each in (await scene.gateway.admin.get("/tenants")).json()["data"] if each["name"] == "acme"]
        assert (await olga.send(f"/dashboard/tenants/{acme['id']}/edit", limits)).status_code == 303
        page = await ada.page("/dashboard/audit")
        assert "tenant.change" in page and "ada@example.com" in page and "olga" not in page
        assert "tenant.change" not in await ada.page("/dashboard/audit?actor=olga@example.com")
    sessions = scene.gateway.services.sessions
    await verify(sessions, peppers=scene.gateway.services.settings.peppers)


async def test_a_real_browser_without_scripts_logs_in_and_out(
    chromium: str, valkey: ValkeyProcess, tmp_path: Path
) -> None:
    """The provider is another site, which does not get our cookies; and our forms lead to no other."""
    async with (
        oidc_scene(tmp_path, valkey, host="localhost") as scene,
        open_tab(chromium, tmp_path / "profile") as tab,
    ):
        public = str(scene.gateway.services.settings.public_url)
        await tab.call("Emulation.setScriptExecutionDisabled", value=True)
        await tab.go(f"{public}{SETTINGS}")
        await tab.click("a.button")
        await tab.evaluate("document.querySelector('[name=login]').value = 'ada'")
        await tab.evaluate("document.querySelector('[name=password]').value = 'any'")
        await tab.click("button[type=submit]")
        await tab.until(f"location.pathname === '{SETTINGS}' && document.readyState === 'complete'")
        assert "ada@example.com" in await tab.evaluate("document.body.innerText")
        await tab.click("header button")
        await tab.until("location.pathname.startsWith('/session/end') && document.readyState === 'complete'")
        assert await visits_in(scene) == []


async def test_the_pages_of_a_login_are_well_shown(chromium: str, scene: OidcScene, tmp_path: Path) -> None:
    async with open_tab(chromium, tmp_path / "profile") as tab:
        for path in ("/dashboard/login", "/dashboard/oidc/callback"):
            await tab.go(f"{scene.gateway.origin}{path}")
            await assert_well_shown(tab)
        async with scene.browser() as olga:
            await olga.log_in("olga")
            cookie = {"name": COOKIE, "value": olga.http.cookies[COOKIE], "url": f"{scene.gateway.origin}/dashboard"}
        await tab.call("Network.setCookie", **cookie)
        for path in (SETTINGS, VISITS, f"{VISITS}/end-all"):
            await tab.go(f"{scene.gateway.origin}{path}")
            assert await tab.evaluate("location.pathname") == path
            await assert_well_shown(tab)
