"""Invoices equal the sums of their lines and of the events, whatever comes late, twice, or at another price."""

import asyncio
import random
import sqlite3
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID, uuid4

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from sqlalchemy.exc import DBAPIError

from gateway.billing.invoicing import Invoicing, line_key
from gateway.billing.periods import month_period, zone_of
from gateway.database import Sessions, open_sessions
from gateway.domain.invoices.models import Invoice
from gateway.domain.invoices.service import Terms, finalize, get_invoice, set_terms
from gateway.domain.money import share_of
from gateway.domain.prices.price_book import RequestPrice
from gateway.domain.principal import Principal
from gateway.domain.tenants.service import create_tenant
from gateway.metering.clickhouse import connect, database_of
from gateway.metering.queries import UsageQueries
from gateway.metering.store import UsageStore
from gateway.metering.windows import Window
from protocol.usage import UsageEvent
from tests.support.clickhouse import ClickHouseProcess
from tests.support.events import make_event
from tests.support.gateways import copy_database

ADMIN = Principal(uuid4(), "operator", uuid4(), "enterprise", frozenset({"platform-admin"}))
ZONES = ("UTC", "Europe/Berlin", "America/New_York", "Pacific/Apia", "Asia/Kathmandu", "America/Sao_Paulo")
MONTHS = ("2027-12", "2028-01", "2028-02", "2028-03", "2028-04")
"""With a leap day, a turn of the year and both changes of clocks."""
END = datetime(2028, 6, 2, tzinfo=UTC)
ALWAYS = Window(datetime(2027, 1, 1, tzinfo=UTC), datetime(2029, 1, 1, tzinfo=UTC))


@dataclass
class Ledger:
    """A tenant's platform: events go into ClickHouse, months become invoices."""

    sessions: Sessions
    store: UsageStore
    queries: UsageQueries
    invoicing: Invoicing
    tenant_id: UUID
    finals: list[Invoice] = field(default_factory=list)

    async def bill(self, month: str) -> Invoice:
        draft = await self.invoicing.draft_month(ADMIN, self.tenant_id, month, now=END)
        await finalize(self.sessions, ADMIN, draft.id, now=END)
        self.finals.append(await get_invoice(self.sessions, ADMIN, draft.id))
        return self.finals[-1]

    async def cost_nanousd(self) -> int:
        return int((await self.queries.totals(ALWAYS, tenant_id=str(self.tenant_id)))["cost_nanousd"])


@pytest.fixture(scope="module")
def platform(clickhouse: ClickHouseProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """URLs of a database and of a ClickHouse that all tests here share, each with tenants of its own."""
    path: Path = tmp_path_factory.mktemp("billing") / "db.sqlite"
    copy_database(path)
    yield f"sqlite+aiosqlite:///{path}", f"{clickhouse.url}/invoicing"


@asynccontextmanager
async def new_ledger(platform: tuple[str, str], *, zone: str = "UTC", tax: int = 0) -> AsyncIterator[Ledger]:
    database_url, clickhouse_url = platform
    queries = UsageQueries(clickhouse_url)
    async with open_sessions(database_url) as sessions:
        tenant = await create_tenant(sessions, None, name=f"t-{uuid4()}", tier="pro", now=END)
        await set_terms(sessions, ADMIN, tenant.id, Terms(zone, "VAT", tax, ""), now=END)
        with closing(UsageStore(clickhouse_url)) as store:
            store.prepare()
            yield Ledger(sessions, store, queries, Invoicing(sessions, clickhouse_url), tenant.id)
    await queries.close()


def event_of(tenant_id: UUID, at: datetime, price: RequestPrice, *, tokens: tuple[int, int, int], n: int) -> UsageEvent:
    prompt, cached, completion = tokens
    used = {"prompt_tokens": prompt, "cached_prompt_tokens": min(cached, prompt), "completion_tokens": completion}
    return make_event(
        str(UUID(int=n)),
        tenant_id=str(tenant_id),
        timestamp=at,
        model_version=f"model-{n % 2}@v{n % 3}",
        adapter_id=str(UUID(int=n % 2)) if n % 3 == 0 else None,
        cost_nanousd=price.cost_nanousd(**used),
        price_lines=price.lines(**used),
        price_version=price.version,
        **used,
    )


prices = st.builds(
    RequestPrice,
    version=st.sampled_from(["p1", "p2"]),
    prompt_nanousd=st.sampled_from([0, 100, 101]),
    cached_prompt_nanousd=st.sampled_from([0, 50]),
    completion_nanousd=st.sampled_from([1, 400, 10**9]),
    adapter_token_nanousd=st.sampled_from([0, 7]),
    minimum_nanousd=st.sampled_from([0, 10_000]),
    discount_basis_points=st.sampled_from([0, 1, 3333]),
)


@st.composite
def moments(draw: st.DrawFn, zone: str) -> datetime:
    """Often right before, at, or after a boundary of months in the zone; and the leap day."""
    boundary = month_period(draw(st.sampled_from(MONTHS)), zone_of(zone)).start
    leap = datetime(2028, 2, 29, 12, tzinfo=UTC)
    near = boundary + timedelta(microseconds=draw(st.sampled_from([-1, 0, 1])))
    anywhere = boundary + timedelta(minutes=draw(st.integers(0, 27 * 24 * 60)))
    return draw(st.sampled_from([near, anywhere, leap]))


@st.composite
def histories(draw: st.DrawFn) -> tuple[str, list[tuple[int, datetime, RequestPrice, tuple[int, int, int]]], int]:
    zone = draw(st.sampled_from(ZONES))
    tokens = st.tuples(st.integers(0, 50), st.integers(0, 50), st.integers(0, 50))
    events = draw(st.lists(st.tuples(moments(zone), prices, tokens), min_size=1, max_size=25))
    return zone, [(n, *event) for n, event in enumerate(events, start=1)], draw(st.integers(0, 2**32))


# Without shrinking: an example takes a second.
@settings(
    max_examples=8,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=(Phase.explicit, Phase.generate),
)
@given(histories(), st.sampled_from([0, 1900, 1]))
def test_all_invoices_together_are_all_events_to_the_nano_dollar(
    platform: tuple[str, str],
    history: tuple[str, list[tuple[int, datetime, RequestPrice, tuple[int, int, int]]], int],
    tax: int,
) -> None:
    zone, drawn, seed = history
    asyncio.run(_check_history(platform, zone, drawn, tax, random.Random(seed)))


async def _check_history(
    platform: tuple[str, str],
    zone: str,
    drawn: list[tuple[int, datetime, RequestPrice, tuple[int, int, int]]],
    tax: int,
    chance: random.Random,
) -> None:
    async with new_ledger(platform, zone=zone, tax=tax) as ledger:
        # An event arrives before some month is billed, at times several times.
        arrivals: dict[int, list[UsageEvent]] = defaultdict(list)
        for n, at, price, tokens in drawn:
            event = event_of(ledger.tenant_id, at, price, tokens=tokens, n=n)
            for _ in range(chance.choice([1, 1, 2, 3])):
                arrivals[chance.randrange(len(MONTHS) + 1)].append(event)
        for turn, month in enumerate([*MONTHS, None]):
            batch = arrivals[turn]
            chance.shuffle(batch)
            for event in batch:
                ledger.store.insert([event])
            if month is not None:
                await _check_invoice(ledger, await ledger.bill(month), tax)
        # What came after the last month was billed is on the next invoice.
        await _check_invoice(ledger, await ledger.bill("2028-05"), tax)
        billed = sum(invoice.subtotal_nanousd for invoice in ledger.finals)
        assert billed == await ledger.cost_nanousd()
        expected = {n: event_of(ledger.tenant_id, at, p, tokens=t, n=n).cost_nanousd for n, at, p, t in drawn}
        assert billed == sum(expected.values())


async def _check_invoice(ledger: Ledger, invoice: Invoice, tax: int) -> None:
    assert invoice.subtotal_nanousd == sum(line.amount_nanousd for line in invoice.lines)
    assert invoice.tax_nanousd == share_of(invoice.subtotal_nanousd, basis_points=tax)
    keys = [line_key(line)[:6] for line in invoice.lines]
    assert len(set(keys)) == len(keys)
    for line in invoice.lines:
        rows = await ledger.invoicing.requests_of(invoice, line_key(line), limit=1000, after=None)
        assert sum(row["amount_nanousd"] for row in rows) == line.amount_nanousd
        assert sum(row["quantity"] for row in rows) == line.quantity
        assert len(rows) == line.num_requests == len({row["request_id"] for row in rows})
        if line.unit_price_nanousd:
            assert line.quantity * line.unit_price_nanousd == line.amount_nanousd
        for row in rows:
            assert (invoice.period_start <= row["timestamp"] < invoice.period_end) is not line.is_adjustment


PRICE = RequestPrice("p", prompt_nanousd=10, completion_nanousd=20)


async def test_a_late_event_is_an_adjustment_of_the_next_invoice_once(platform: tuple[str, str]) -> None:
    async with new_ledger(platform) as ledger:
        at = datetime(2028, 1, 20, tzinfo=UTC)
        ledger.store.insert([event_of(ledger.tenant_id, at, PRICE, tokens=(10, 0, 5), n=1)])
        first = await ledger.bill("2028-01")
        assert (first.subtotal_nanousd, first.num_final_before) == (200, 0)
        ledger.store.insert([event_of(ledger.tenant_id, at, PRICE, tokens=(1, 0, 0), n=2)])
        second, third = await ledger.bill("2028-02"), await ledger.bill("2028-03")
        [line] = second.lines
        assert (line.is_adjustment, line.month, line.amount_nanousd) == (True, "2028-01", 10)
        assert third.lines == []


async def test_what_is_priced_anew_or_turns_out_to_have_failed_is_the_difference_on_the_next_invoice(
    platform: tuple[str, str],
) -> None:
    async with new_ledger(platform) as ledger:
        at = datetime(2028, 1, 20, tzinfo=UTC)
        events = [event_of(ledger.tenant_id, at, PRICE, tokens=(10, 0, 5), n=n) for n in (2, 4)]
        ledger.store.insert(events)
        assert (await ledger.bill("2028-01")).subtotal_nanousd == 400
        failed = make_event(
            events[1].request_id,
            tenant_id=str(ledger.tenant_id),
            timestamp=at,
            status="error",
            cost_nanousd=0,
            model_version=events[1].model_version,
        )
        ledger.store.insert([failed])
        second = await ledger.bill("2028-02")
        assert [(line.kind, line.quantity, line.amount_nanousd) for line in second.lines] == [
            ("input", -10, -100),
            ("output", -5, -100),
        ]
        # Less than nothing is not due: it is the tenant's credit.
        assert (second.total_nanousd, second.credit_nanousd, second.due_nanousd) == (-200, -200, 0)
        assert sum(invoice.subtotal_nanousd for invoice in ledger.finals) == await ledger.cost_nanousd()


async def test_an_event_of_the_first_version_is_billed_by_its_cost(platform: tuple[str, str]) -> None:
    async with new_ledger(platform) as ledger:
        at = datetime(2028, 1, 20, tzinfo=UTC)
        old = make_event("old", tenant_id=str(ledger.tenant_id), timestamp=at, cost_nanousd=4200, schema_version=1)
        ledger.store.insert([old])
        [line] = (await ledger.bill("2028-01")).lines
        assert (line.kind, line.quantity, line.amount_nanousd) == ("tokens", 42, 4200)


@pytest.mark.parametrize(
    ("month", "zone", "start", "end"),
    [
        ("2028-02", "UTC", "2028-02-01T00:00:00+00:00", "2028-03-01T00:00:00+00:00"),
        ("2027-12", "UTC", "2027-12-01T00:00:00+00:00", "2028-01-01T00:00:00+00:00"),
        ("2028-03", "Europe/Berlin", "2028-02-29T23:00:00+00:00", "2028-03-31T22:00:00+00:00"),
        ("2028-11", "America/New_York", "2028-11-01T04:00:00+00:00", "2028-12-01T05:00:00+00:00"),
        ("2028-01", "Asia/Kathmandu", "2027-12-31T18:15:00+00:00", "2028-01-31T18:15:00+00:00"),
        # A country that left out 30 December 2011, and one where the first midnight of October 2028 may not exist.
        ("2011-12", "Pacific/Apia", "2011-12-01T10:00:00+00:00", "2011-12-31T10:00:00+00:00"),
    ],
)
def test_a_month_is_from_midnight_to_midnight_in_its_zone(month: str, zone: str, start: str, end: str) -> None:
    period = month_period(month, zone_of(zone))
    assert (period.start.isoformat(), period.end.isoformat()) == (start, end)


@given(st.sampled_from(ZONES), st.integers(2000, 2100), st.integers(1, 12))
def test_months_follow_each_other_without_gap_or_overlap(zone: str, year: int, month: int) -> None:
    following = f"{year + month // 12}-{month % 12 + 1:02}"
    assert month_period(f"{year}-{month:02}", zone_of(zone)).end == month_period(following, zone_of(zone)).start


async def test_a_record_of_what_was_billed_that_is_gone_stops_billing(platform: tuple[str, str]) -> None:
    async with new_ledger(platform) as ledger:
        at = datetime(2028, 1, 20, tzinfo=UTC)
        ledger.store.insert([event_of(ledger.tenant_id, at, PRICE, tokens=(10, 0, 5), n=1)])
        await ledger.bill("2028-01")
        queries = UsageQueries(platform[1])
        delete = (
            f"ALTER TABLE invoiced_events DELETE WHERE tenant_id = '{ledger.tenant_id}' SETTINGS mutations_sync = 2"
        )
        await asyncio.to_thread(lambda: queries._connected().command(delete))
        await queries.close()
        with pytest.raises(Exception, match="restore the table"):
            await ledger.bill("2028-02")


def delete_record(url: str, tenant_id: UUID) -> None:
    with closing(connect(url, database=database_of(url))) as client:
        client.command(
            f"ALTER TABLE invoiced_events DELETE WHERE tenant_id = '{tenant_id}' SETTINGS mutations_sync = 2"
        )


async def test_the_database_itself_refuses_to_change_what_is_final(platform: tuple[str, str]) -> None:
    async with new_ledger(platform) as ledger:
        at = datetime(2028, 1, 20, tzinfo=UTC)
        ledger.store.insert([event_of(ledger.tenant_id, at, PRICE, tokens=(10, 0, 5), n=1)])
        invoice = await ledger.bill("2028-01")
        with closing(sqlite3.connect(platform[0].removeprefix("sqlite+aiosqlite:///"))) as file:
            key = invoice.id.hex
            for statement in (
                f"UPDATE invoices SET due_nanousd = 0, credit_nanousd = total_nanousd WHERE id = '{key}'",
                f"UPDATE invoices SET status = 'draft', number = NULL WHERE id = '{key}'",
                f"DELETE FROM invoices WHERE id = '{key}'",
                f"UPDATE invoice_lines SET amount_nanousd = 1 WHERE invoice_id = '{key}'",
                f"DELETE FROM invoice_lines WHERE invoice_id = '{key}'",
                f"INSERT INTO invoice_lines SELECT invoice_id, 99, description, month, is_adjustment, model_id, "
                f"adapter_id, kind, 0, 1, 1, 1 FROM invoice_lines WHERE invoice_id = '{key}'",
            ):
                with pytest.raises(sqlite3.IntegrityError, match="never change"):
                    file.execute(statement)
        async with ledger.sessions() as session:
            found = await session.get(Invoice, invoice.id)
            assert found is not None
            found.recipient = "somebody else"
            with pytest.raises(DBAPIError, match="never change"):
                await session.commit()
