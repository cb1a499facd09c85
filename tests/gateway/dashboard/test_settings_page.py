"""What a gateway runs with, without its secrets; visits that are ended from elsewhere."""

from pathlib import Path
from uuid import UUID

from gateway.clock import utc_now
from gateway.dashboard.cookies import COOKIE, LIFETIME
from gateway.dashboard.settings import shown_settings
from gateway.domain.visits.service import begin_visit, visits_of
from tests.support.consoles import visit
from tests.support.gateways import ADMIN_KEY, WORKER_KEY, make_settings
from tests.support.money_scenes import MoneyScene

PATH = "/dashboard/settings"


async def test_an_operator_sees_the_settings_by_variable_and_no_secret(money: MoneyScene) -> None:
    async with visit(money.gateway, ADMIN_KEY) as operator:
        page = await operator.page(PATH)
    for told in ("TIERGATE_REDIS_DEADLINE_MS", "5000", "TIERGATE_KEY_PEPPER", "sqlite", "default"):
        assert told in page, told
    assert "pepper-of-the-tests" not in page and WORKER_KEY not in page and ADMIN_KEY not in page
    async with visit(money.gateway, money.acme.reader) as reader:
        page = await reader.page(PATH)
        assert "TIERGATE_" not in page and "Your visits" in page


def test_what_stands_in_urls_is_not_told_either(tmp_path: Path) -> None:
    settings = make_settings(
        tmp_path,
        "rediss://someone:hush@cache:6379/0",
        database_url="postgresql+asyncpg://user:hush@db/tiergate?password=hush&sslmode=require",
        clickhouse_url="http://user:hush@clickhouse:8123/db",
        artifacts_url="s3://bucket/prefix?secret_access_key=hush",
    )
    told = " ".join(value for _, value, _ in shown_settings(settings))
    assert "hush" not in told and "cache:6379" in told and "sslmode=require" in told


async def test_other_visits_are_ended_from_here_and_their_cookies_say_nothing_more(money: MoneyScene) -> None:
    key = money.acme.reader
    async with (
        visit(money.gateway, key) as here,
        visit(money.gateway, key) as there,
        visit(money.gateway, money.acme.key) as of_another_key,
    ):
        assert (await here.page(PATH)).count(">another<") == 1
        assert (await here.http.post(f"{PATH}/end-others", data={"token": "made up"})).status_code == 403
        await there.page("/dashboard/requests")
        reply = await here.send(f"{PATH}/end-others")
        assert reply.status_code == 303
        assert (await there.http.get("/dashboard/requests")).headers["location"].startswith("/dashboard/login")
        assert ">another<" not in await here.page(PATH)
        await of_another_key.page(PATH)
    assert (await money.actions())[-1] == "visit.end"


async def test_a_copied_cookie_ends_with_its_visit(money: MoneyScene) -> None:
    async with visit(money.gateway, money.acme.reader) as visitor:
        await visitor.page("/dashboard/requests")
        copied = visitor.http.cookies[COOKIE]
        token = (await visitor.page(PATH)).partition('name="token" value="')[2].partition('"')[0]
        await visitor.http.post("/dashboard/logout", data={"token": token})
        again = await visitor.http.get("/dashboard/requests", headers={"Cookie": f"{COOKIE}={copied}"})
        assert again.status_code == 303 and again.headers["location"].startswith("/dashboard/login")


async def test_visits_that_expired_leave(money: MoneyScene) -> None:
    sessions, now = money.gateway.services.sessions, utc_now()
    [key] = [each for each in (await money.gateway.admin.get("/keys")).json()["data"] if each["prefix"] in ADMIN_KEY]
    key_id, long_ago = UUID(key["id"]), now - 2 * LIFETIME
    for began in (long_ago, now):
        await begin_visit(sessions, key_id, address="", browser="x" * 999, expires_at=began + LIFETIME, now=began)
    async with sessions() as session:
        found = list(await session.scalars(visits_of(key_id, now=long_ago)))
    assert [each.began_at for each in found] == [now]
