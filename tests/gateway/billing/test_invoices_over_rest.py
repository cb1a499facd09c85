import asyncio
import csv
import io
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx
from pypdf import PdfReader

from gateway.billing.documents.html import as_html
from gateway.billing.documents.pdf import as_pdf
from gateway.domain.invoices.models import Invoice, InvoiceLine
from gateway.domain.prices.price_book import RequestPrice
from gateway.metering.store import UsageStore
from tests.gateway.billing.test_invoicing import event_of
from tests.support.cli import tiergate
from tests.support.gateways import ADMIN_KEY, Gateway

PRICE = RequestPrice("p", prompt_nanousd=1_000_000, completion_nanousd=2_000_000)
MAY = datetime(2026, 5, 10, 12, tzinfo=UTC)


async def make_tenant(gateway: Gateway, name: str = "acme") -> tuple[str, httpx.AsyncClient]:
    """Its id, and the admin API as its own administrator sees it."""
    tenant = await gateway.post("/tenants", {"name": name, "tier": "pro"})
    made = await gateway.post("/keys", {"tenant_id": tenant["id"], "name": "a", "scopes": ["tenant-admin"]})
    headers = {"Authorization": f"Bearer {made['key']}"}
    return tenant["id"], httpx.AsyncClient(base_url=f"{gateway.origin}/admin/v1", headers=headers, timeout=30)


def use(store: UsageStore, tenant_id: str, *, num: int = 3, at: datetime = MAY, first: int = 1) -> None:
    events = [
        event_of(UUID(tenant_id), at + timedelta(seconds=n), PRICE, tokens=(100, 0, 50), n=6 * n + 2)
        for n in range(first, first + num)
    ]
    store.insert(events)


async def act(gateway: Gateway, invoice: dict[str, Any], verb: str, status: int = 200) -> dict[str, Any]:
    reply = await gateway.admin.post(f"/invoices/{invoice['id']}/{verb}", json={})
    assert reply.status_code == status, reply.text
    answer: dict[str, Any] = reply.json()
    return answer


async def test_an_invoice_lives_from_draft_to_final_and_its_lines_lead_to_their_requests(
    gateway: Gateway, store: UsageStore
) -> None:
    tenant_id, tenant = await make_tenant(gateway)
    use(store, tenant_id)
    account = {"time_zone": "Europe/Berlin", "tax_name": "VAT", "tax_basis_points": 1900, "recipient": "Acme\n1 Road"}
    assert (await gateway.admin.put(f"/billing-accounts/{tenant_id}", json=account)).json() == account | {"version": 1}
    await gateway.post("/credits", {"tenant_id": tenant_id, "amount_nanousd": 500_000_000, "note": "paid ahead"})
    draft = await gateway.post("/invoices", {"tenant_id": tenant_id, "month": "2026-05"})
    assert (draft["status"], draft["number"], draft["period_start"]) == ("draft", None, "2026-04-30T22:00:00Z")
    assert [(line["kind"], line["quantity"], line["amount_nanousd"]) for line in draft["lines"]] == [
        ("input", 300, 300_000_000),
        ("output", 150, 300_000_000),
    ]
    assert (draft["subtotal_nanousd"], draft["tax_nanousd"]) == (600_000_000, 114_000_000)
    # What a tenant sees is final.
    assert (await tenant.get(f"/invoices/{draft['id']}")).status_code == 404
    use(store, tenant_id, num=1, first=7)
    assert (await act(gateway, draft, "recalculate"))["subtotal_nanousd"] == 800_000_000
    final = await act(gateway, draft, "finalize")
    assert (final["status"], final["number"]) == ("final", "INV-000001")
    assert (final["total_nanousd"], final["credit_nanousd"], final["due_nanousd"]) == (
        952_000_000,
        500_000_000,
        452_000_000,
    )
    for line in final["lines"]:
        path, rows, after = f"/invoices/{final['id']}/lines/{line['position']}/requests", [], None
        while True:
            page = (await tenant.get(path, params={"limit": 3} | ({"after": after} if after else {}))).json()
            rows += page["data"]
            after = page["next"]
            if after is None:
                break
        assert len({row["request_id"] for row in rows}) == len(rows) == line["num_requests"] == 4
        assert sum(row["amount_nanousd"] for row in rows) == line["amount_nanousd"]
    for verb in ("recalculate", "finalize"):
        await act(gateway, draft, verb, status=409)
    assert (await gateway.admin.delete(f"/invoices/{final['id']}")).status_code == 409
    actions = [entry["action"] for entry in (await tenant.get("/audit")).json()["data"]]
    assert actions[-5:] == [
        "billing_account.change",
        "credit.grant",
        "invoice.draft",
        "invoice.recalculate",
        "invoice.finalize",
    ]
    await tenant.aclose()


async def test_a_tenants_administrator_sees_its_own_and_changes_nothing(gateway: Gateway, store: UsageStore) -> None:
    tenant_id, tenant = await make_tenant(gateway)
    other_id, other = await make_tenant(gateway, "other")
    use(store, tenant_id)
    draft = await gateway.post("/invoices", {"tenant_id": tenant_id, "month": "2026-05"})
    await act(gateway, draft, "finalize")
    assert [each["id"] for each in (await tenant.get("/invoices")).json()["data"]] == [draft["id"]]
    assert (await other.get("/invoices")).json()["data"] == []
    for path in (
        f"/invoices/{draft['id']}",
        f"/invoices/{draft['id']}/lines/1/requests",
        f"/invoices/{draft['id']}/document",
        f"/invoices?tenant_id={tenant_id}",
        f"/credits?tenant_id={tenant_id}",
        f"/credits/{tenant_id}/balance",
        f"/billing-accounts/{tenant_id}",
    ):
        assert (await tenant.get(path)).status_code == 200
        assert (await other.get(path)).status_code == 404
    for method, path in (
        ("POST", "/invoices"),
        ("POST", f"/invoices/{draft['id']}/finalize"),
        ("DELETE", f"/invoices/{draft['id']}"),
        ("POST", f"/invoices/{draft['id']}/credit-notes"),
        ("POST", "/credits"),
        ("PUT", f"/billing-accounts/{tenant_id}"),
    ):
        assert (await tenant.request(method, path, json={})).status_code in (400, 403)
    assert (await gateway.admin.get(f"/billing-accounts/{other_id}")).json()["time_zone"] == "UTC"
    await tenant.aclose()
    await other.aclose()


async def test_credit_notes_take_back_at_most_the_invoice_and_its_tax_to_the_nano_dollar(
    gateway: Gateway, store: UsageStore
) -> None:
    tenant_id, tenant = await make_tenant(gateway)
    use(store, tenant_id, num=1)
    await gateway.admin.put(f"/billing-accounts/{tenant_id}", json={"tax_basis_points": 3333})
    draft = await gateway.post("/invoices", {"tenant_id": tenant_id, "month": "2026-05"})
    note = {"net_nanousd": 66_666_667, "reason": "an outage"}
    assert (await gateway.admin.post(f"/invoices/{draft['id']}/credit-notes", json=note)).status_code == 404
    final = await act(gateway, draft, "finalize")
    notes = []
    for net in (66_666_667, 66_666_667, 66_666_666):
        notes.append(await gateway.post(f"/invoices/{final['id']}/credit-notes", {**note, "net_nanousd": net}))
    assert [each["number"] for each in notes] == ["CN-000001", "CN-000002", "CN-000003"]
    for name in ("subtotal_nanousd", "tax_nanousd", "total_nanousd"):
        assert sum(each[name] for each in notes) == -final[name]
    refused = await gateway.admin.post(f"/invoices/{final['id']}/credit-notes", json={**note, "net_nanousd": 1})
    assert refused.status_code == 409
    balance = (await tenant.get(f"/credits/{tenant_id}/balance")).json()["balance_nanousd"]
    assert balance == final["total_nanousd"]
    taken = {"tenant_id": tenant_id, "amount_nanousd": -balance - 1, "note": "paid out"}
    assert (await gateway.admin.post("/credits", json=taken)).status_code == 400
    await gateway.post("/credits", {**taken, "amount_nanousd": -balance})
    await tenant.aclose()


async def test_an_invoice_on_demand_and_the_month_after_it_share_no_moment(gateway: Gateway, store: UsageStore) -> None:
    tenant_id, tenant = await make_tenant(gateway)
    use(store, tenant_id, num=2)
    cut = (MAY + timedelta(seconds=2)).isoformat()
    span = {"tenant_id": tenant_id, "start": "2026-05-01T00:00:00Z", "end": cut}
    first = await gateway.post("/invoices", span)
    assert (await gateway.admin.post("/invoices", json=span)).status_code == 409
    await act(gateway, first, "finalize")
    second = await gateway.post("/invoices", {"tenant_id": tenant_id, "month": "2026-05"})
    assert second["period_start"] == first["period_end"]
    assert first["subtotal_nanousd"] == second["subtotal_nanousd"] == 200_000_000
    await tenant.aclose()


async def test_a_bad_question_is_refused_by_name(gateway: Gateway) -> None:
    tenant_id, tenant = await make_tenant(gateway)
    questions: list[tuple[dict[str, Any], int, str | None]] = [
        ({"month": "2026-13"}, 400, "month"),
        ({"month": "May"}, 400, "month"),
        ({"month": "2026-05", "start": "2026-05-01T00:00:00Z"}, 400, "month"),
        ({"start": "2026-05-02T00:00:00Z", "end": "2026-05-01T00:00:00Z"}, 400, "start"),
        ({}, 400, "start"),
        ({"month": "2199-01"}, 409, None),
        ({"tenant_id": str(UUID(int=1)), "month": "2026-05"}, 404, None),
    ]
    for body, status, param in questions:
        reply = await gateway.admin.post("/invoices", json={"tenant_id": tenant_id} | body)
        assert (reply.status_code, reply.json()["error"]["param"]) == (status, param), body
    wrong = await gateway.admin.put(f"/billing-accounts/{tenant_id}", json={"time_zone": "Mars/Phobos"})
    assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "time_zone")
    await tenant.aclose()


async def test_a_draft_that_is_out_of_date_cannot_become_final(gateway: Gateway, store: UsageStore) -> None:
    tenant_id, tenant = await make_tenant(gateway)
    use(store, tenant_id, num=1)
    may, june = [
        await gateway.post("/invoices", {"tenant_id": tenant_id, "month": month}) for month in ("2026-05", "2026-06")
    ]
    # June's draft took May's usage for usage that nobody billed.
    assert june["lines"][0]["is_adjustment"] and june["subtotal_nanousd"] == may["subtotal_nanousd"]
    await act(gateway, may, "finalize")
    await act(gateway, june, "finalize", status=409)
    assert (await act(gateway, june, "recalculate"))["subtotal_nanousd"] == 0
    await act(gateway, june, "finalize")
    now = datetime.now(UTC)
    running = await gateway.post("/invoices", {"tenant_id": tenant_id, "month": f"{now:%Y-%m}"})
    assert "not over before" in (await act(gateway, running, "finalize", status=409))["error"]["message"]
    assert (await gateway.admin.delete(f"/invoices/{running['id']}")).status_code == 204
    await tenant.aclose()


async def test_documents_say_what_the_invoice_says(gateway: Gateway, store: UsageStore) -> None:
    tenant_id, tenant = await make_tenant(gateway)
    use(store, tenant_id, num=1)
    await gateway.admin.put(f"/billing-accounts/{tenant_id}", json={"recipient": "<b>=1+1 & Söhne</b>\nStraße 1"})
    draft = await gateway.post("/invoices", {"tenant_id": tenant_id, "month": "2026-05"})
    final = await act(gateway, draft, "finalize")
    path = f"/invoices/{final['id']}/document"
    page = await tenant.get(path, params={"format": "html"})
    assert "<b>" not in page.text and "&lt;b&gt;=1+1 &amp; Söhne" in page.text
    assert "INV-000001" in page.text and "2026-05-01 to 2026-05-31 (UTC)" in page.text and "0.20" in page.text
    assert (
        "script" not in page.headers["content-security-policy"]
        and "default-src 'none'" in page.headers["content-security-policy"]
    )
    rows = list(csv.DictReader(io.StringIO((await tenant.get(path, params={"format": "csv"})).text)))
    amounts = [int(row["amount_nanousd"]) for row in rows]
    assert sum(amounts[:-5]) == final["subtotal_nanousd"] == amounts[-5]
    assert [row["kind"] for row in rows[-5:]] == ["subtotal", "tax", "total", "credit", "due"]
    printed = [(await tenant.get(path, params={"format": "pdf"})).content for _ in range(2)]
    assert printed[0] == printed[1]
    text = "".join(page.extract_text() for page in PdfReader(io.BytesIO(printed[0])).pages)
    for words in ("INV-000001", "<b>=1+1 & Söhne</b>", "Straße 1", "2026-05-01 to 2026-05-31", "0.20", "Amount due"):
        assert words in text
    assert (await tenant.get(path, params={"format": "doc"})).status_code == 400
    await tenant.aclose()


async def test_the_command_line_bills_and_prices_anew(gateway: Gateway, store: UsageStore, tmp_path: Path) -> None:
    tenant_id, tenant = await make_tenant(gateway)
    use(store, tenant_id, num=1)
    env = {"TIERGATE_BASE_URL": gateway.base_url, "TIERGATE_ADMIN_KEY": ADMIN_KEY}

    async def run(*arguments: str) -> str:
        ended = await asyncio.to_thread(tiergate, *arguments, env=env)
        assert ended.returncode == 0, ended
        return ended.stdout

    await gateway.post("/models", {"id": "model-0", "pool": "small", "context_window": 512})
    start, end = "2026-05-01T00:00:00Z", "2026-06-01T00:00:00Z"
    price = ("--prompt", "1", "--completion", "2", "--valid-from", start, "--correction")
    await run("price", "add", "model-0", *price)
    shown = json.loads(await run("price", "rerate", "--from", start, "--to", end, "--apply", "--json"))
    assert (shown["num_changed"], shown["old_nanousd"], shown["new_nanousd"]) == (1, 200_000_000, 200)
    await run("invoice", "account", "set", "acme", "--recipient", "Acme\\n1 Road")
    await run("invoice", "credit", "grant", "acme", "--amount", "150", "--note", "welcome")
    made = json.loads(await run("invoice", "create", "--all", "--month", "2026-05", "--json"))
    # The platform's own tenant has one too, of nothing.
    [draft] = [each for each in made if each["tenant_id"] == tenant_id]
    final = json.loads(await run("invoice", "finalize", draft["id"], "--json"))
    assert (final["credit_nanousd"], final["due_nanousd"], final["recipient"]) == (150, 50, "Acme\n1 Road")
    assert final["number"] in await run("invoice", "list", "--tenant", "acme")
    assert "input tokens" in await run("invoice", "show", draft["id"])
    assert "100" in await run("invoice", "requests", draft["id"], "1")
    await run("invoice", "download", draft["id"], str(tmp_path / "invoice.csv"))
    assert "INV-" in (tmp_path / "invoice.csv").read_text()
    await run("invoice", "credit-note", draft["id"], "--net", "20", "--reason", "an outage")
    assert json.loads(await run("invoice", "credit", "show", "acme", "--json"))["balance_nanousd"] == 20
    await tenant.aclose()


def test_a_long_invoice_repeats_the_heads_of_its_table_and_what_the_font_lacks_is_no_error() -> None:
    start = datetime(2026, 5, 1, tzinfo=UTC)
    lines = [
        InvoiceLine(
            position=n,
            description=f"模型-{n}, input tokens",
            month="2026-05",
            is_adjustment=False,
            model_id="m",
            adapter_id="",
            kind="input",
            unit_price_nanousd=100,
            num_requests=1,
            quantity=3,
            amount_nanousd=300,
        )
        for n in range(200)
    ]
    invoice = Invoice(
        id=UUID(int=1),
        kind="invoice",
        status="draft",
        number=None,
        recipient="株式会社",
        time_zone="UTC",
        period_start=start,
        period_end=start + timedelta(days=31),
        calculated_at=start,
        finalized_at=None,
        tax_name="VAT",
        tax_basis_points=725,
        subtotal_nanousd=60_000,
        tax_nanousd=4350,
        total_nanousd=64_350,
        credit_nanousd=0,
        due_nanousd=64_350,
        lines=lines,
    )
    pages = [page.extract_text() for page in PdfReader(io.BytesIO(as_pdf(invoice))).pages]
    assert len(pages) > 3 and all("USD per million" in page for page in pages[:3])
    assert "VAT 7.25 %" in pages[-1] and "0.00006435" in pages[-1]
    assert "株式会社" in as_html(invoice)
