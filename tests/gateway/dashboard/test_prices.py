"""The price book in the console of a real gateway."""

import re
from datetime import timedelta
from html import unescape

import pytest

from gateway.clock import utc_now
from tests.support.consoles import Visit, visit
from tests.support.gateways import ADMIN_KEY
from tests.support.money_scenes import MODEL, MoneyScene

PATH = "/dashboard/prices"


async def test_the_book_shows_what_is_in_force_what_comes_and_what_was(money: MoneyScene) -> None:
    soon = (utc_now() + timedelta(days=3)).isoformat()
    ago = (utc_now() - timedelta(days=3)).isoformat()
    price = {"model_id": MODEL, "prompt_nanousd": 250, "cached_prompt_nanousd": 25, "completion_nanousd": 1000}
    await money.gateway.post("/prices", {**price, "minimum_nanousd": 5})
    await money.gateway.post("/prices", {**price, "prompt_nanousd": 777_000, "valid_from": soon})
    await money.gateway.post("/prices", {**price, "prompt_nanousd": 50, "valid_from": ago, "is_correction": True})
    await money.gateway.post("/prices/surcharges", {"model_id": MODEL, "token_nanousd": 33})
    await money.gateway.post("/prices/discounts", {"tier": "pro", "basis_points": 1550})
    await money.gateway.post("/prices/discounts", {"tier": "free", "basis_points": 2222})
    await money.gateway.post("/models", {"id": "free-model", "pool": "large", "context_window": 512})
    async with visit(money.gateway, ADMIN_KEY) as operator:
        page = await operator.page(PATH)
        now, _, coming = page.partition("<h2>Coming")
        for told in ("$0.250", "$0.025", "$1.000", "$0.000000005", "$0.033", "15.50 %", "22.22 %", "free-model"):
            assert told in now, told
        assert "$777.000" in coming and "$777.000" not in now and "$0.050" not in now
        history = await operator.page(f"{PATH}/history?model={MODEL}")
        states = re.findall(r'<span class="status \w+">(\w+ ?\w*)</span>|<td>(over)', history)
        assert [first or second for first, second in states] == ["coming", "in force", "over", "over"]
        assert "correction" in history
    async with visit(money.gateway, money.acme.key) as owner:
        page = await owner.page(PATH)
        assert "$0.250" in page and "15.50 %" in page and "22.22 %" not in page and "/new" not in page
        await owner.page(f"{PATH}/history")
    async with visit(money.gateway, money.acme.reader) as reader:
        await reader.page(PATH, status=403)


TYPED = {"model_id": MODEL, "prompt_nanousd": "2000", "completion_nanousd": "2,000.00"}
"""150 tokens come to $0.30; they were billed $0.20."""


async def previewed(operator: Visit, path: str, **typed: str) -> str:
    reply = await operator.send(path, typed)
    assert reply.status_code == 200, reply.text
    return unescape(reply.text)


async def test_a_price_is_shown_with_what_it_comes_to_before_it_is_written(money: MoneyScene) -> None:
    money.use(money.acme, at=utc_now() - timedelta(days=3))
    money.use(money.other, num=1, at=utc_now() - timedelta(days=60))
    async with visit(money.gateway, ADMIN_KEY) as operator:
        page = await previewed(operator, f"{PATH}/new", **TYPED)
        assert "$0.60" in page and "$0.90" in page and "$0.30" in page and "3 requests" in page
        assert (await money.actions())[-1] != "price.add", "nothing was written yet"
        written = await operator.submit(page, f"{PATH}/new", {})
        assert written.status_code == 303, written.text
        assert "$2,000.000" in await operator.page(written.headers["location"])
    assert (await money.actions())[-1] == "price.add"


async def test_a_correction_shows_its_difference_and_past_usage_is_priced_anew(money: MoneyScene) -> None:
    ago = utc_now() - timedelta(days=3)
    money.use(money.acme, at=ago)
    money.use(money.other, num=1, at=ago - timedelta(days=3))
    since = (ago - timedelta(hours=1)).isoformat()
    async with visit(money.gateway, ADMIN_KEY) as operator:
        past = await operator.send(f"{PATH}/new", {**TYPED, "valid_from": since})
        assert past.status_code == 400 and "tick" in past.text
        page = await previewed(operator, f"{PATH}/new", **TYPED, valid_from=since, is_correction="yes")
        assert "A correction" in page and "$0.60" in page and "$0.90" in page and ">other<" not in page
        written = await operator.submit(page, f"{PATH}/new", {})
        assert written.headers["location"].startswith(f"{PATH}/rerate?start=")
        path = written.headers["location"]
        end = (utc_now() + timedelta(minutes=1)).isoformat()
        reply = await operator.submit(await operator.page(path), path, {"end": end})
        assert "$0.30" in reply.text and "price.rerate" not in await money.actions()
        done = await operator.submit(reply.text, path, {})
        assert done.status_code == 303 and "notice=rerated" in done.headers["location"], done.text
        again = await operator.submit(await operator.page(path), path, {"end": end})
        assert "No request would cost anything else" in again.text
    assert (await money.actions())[-1] == "price.rerate"


async def test_pricing_anew_goes_on_where_it_was_left(money: MoneyScene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.dashboard.price_changes.BOUND_S", 0.0)
    monkeypatch.setattr(money.gateway.services.rerating, "_page", 2)
    money.use(money.acme, num=5)
    path = f"{PATH}/rerate"
    async with visit(money.gateway, ADMIN_KEY) as operator:
        period = {"start": "2026-05-01", "end": "2026-06-01"}
        may = "2026-05-01T00:00:00Z"
        price = {"model_id": MODEL, "prompt_nanousd": 10, "completion_nanousd": 20, "valid_from": may}
        await money.gateway.post("/prices", {**price, "is_correction": True})
        reply, num_rounds = await operator.submit(await operator.page(path), path, period), 0
        while reply.status_code == 200:
            reply = await operator.submit(reply.text, path, {})
            num_rounds += 1
        assert reply.status_code == 303 and num_rounds == 3, reply.text
    assert (await money.actions()).count("price.rerate") == 3


async def test_surcharges_and_discounts_are_added_and_taken_back_before_they_count(money: MoneyScene) -> None:
    made = {"tenant_id": money.acme.id, "name": "voice", "variants": {MODEL: "voice"}}
    await money.gateway.post("/adapters", made)
    soon = (utc_now() + timedelta(days=1)).isoformat()
    forms = {
        "new-surcharge": {"model_id": MODEL, "adapter_id": "voice", "token_nanousd": "0.5", "valid_from": soon},
        "new-discount": {"tier": "pro", "basis_points": "7.25", "valid_from": soon},
    }
    async with visit(money.gateway, ADMIN_KEY) as operator:
        for name, typed in forms.items():
            page = await previewed(operator, f"{PATH}/{name}", **typed)
            assert (await operator.submit(page, f"{PATH}/{name}", {})).status_code == 303
        page = await operator.page(PATH)
        assert "$0.500" in page and "7.25 %" in page and "voice" in page
        for path in re.findall(r'href="(/dashboard/prices/\w+/[^"]+/delete)"', page):
            assert (await operator.send(path)).status_code == 303
        assert "Coming" not in await operator.page(PATH)
    assert (await money.actions())[-4:] == ["surcharge.add", "discount.add", "surcharge.delete", "discount.delete"]


@pytest.mark.parametrize(
    "typed",
    [
        {"prompt_nanousd": "cheap"},
        {"prompt_nanousd": "0.0001"},
        {"prompt_nanousd": "-1"},
        {"prompt_nanousd": "999999999999"},
        {"completion_nanousd": ""},
        {"model_id": ""},
        {"model_id": "nobody's"},
        {"valid_from": "soon"},
        {"valid_from": "2026-05-01"},
    ],
)
async def test_a_price_that_cannot_be_is_told_at_its_field(money: MoneyScene, typed: dict[str, str]) -> None:
    async with visit(money.gateway, ADMIN_KEY) as operator:
        reply = await operator.send(f"{PATH}/new", {**TYPED, **typed})
        if reply.status_code == 200:
            reply = await operator.submit(reply.text, f"{PATH}/new", {})
        [field] = typed
        assert reply.status_code == 400 and f'id="p-{field}"' in reply.text, reply.text


async def test_a_book_that_was_changed_meanwhile_is_told_and_nothing_typed_is_lost(money: MoneyScene) -> None:
    async with visit(money.gateway, ADMIN_KEY) as operator:
        page = await previewed(operator, f"{PATH}/new", **TYPED)
        await money.gateway.post("/prices/discounts", {"tier": "pro", "basis_points": 1})
        reply = await operator.submit(page, f"{PATH}/new", {})
        assert (
            reply.status_code == 409 and 'value="2,000.00"' in reply.text and "changed while you looked" in reply.text
        )
        # Nobody else's form writes a price, and neither does a tenant's.
        assert (await operator.http.post(f"{PATH}/new", data={**TYPED, "confirmed": "yes"})).status_code == 403
    async with visit(money.gateway, money.acme.key) as owner:
        for path in ("new", "new-surcharge", "new-discount", "rerate"):
            await owner.page(f"{PATH}/{path}", status=403)
            assert (await owner.http.post(f"{PATH}/{path}", data=TYPED)).status_code == 403
