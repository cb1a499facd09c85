"""Keys in memory: no I/O while they are fresh, revocation within two seconds, service while the database is away."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest

from gateway.database import Sessions, open_sessions
from gateway.domain.keys.keyring import AWAY_AFTER_S, FRESH_S, REFRESH_S, STALE_S, Keyring
from gateway.domain.keys.lookups import BATCH, MAX_READERS
from gateway.domain.keys.queries import keys_of
from gateway.domain.keys.secret import hash_key, is_same_hash, lookup_prefix, make_key
from gateway.domain.keys.service import bootstrap_admin_key, make_admin_key
from gateway.domain.principal import Principal
from gateway.domain.tenants.service import tenants_visible_to
from gateway.http.errors import Forbidden, Unauthenticated, Unavailable
from gateway.main import end_tasks
from gateway.peppers import Peppers
from tests.support.clocks import Clock
from tests.support.gated_sessions import GatedSessions
from tests.support.gateways import ADMIN_KEY, copy_database, eventually

HEADER = f"Bearer {ADMIN_KEY}"
PEPPER = "pepper-of-the-tests"
NOW = datetime(2026, 3, 14, tzinfo=UTC)


@pytest.fixture
async def sessions(tmp_path: Path) -> AsyncIterator[Sessions]:
    await asyncio.to_thread(copy_database, tmp_path / "db.sqlite")
    async with open_sessions(f"sqlite:///{tmp_path / 'db.sqlite'}") as opened:
        await bootstrap_admin_key(opened, ADMIN_KEY, pepper=PEPPER, now=NOW)
        yield opened


@pytest.fixture
async def gated(sessions: Sessions) -> GatedSessions:
    return GatedSessions(sessions)


@asynccontextmanager
async def refreshing(keyring: Keyring) -> AsyncIterator[None]:
    task = asyncio.create_task(keyring.refresh_forever())
    try:
        yield
        assert not task.done()
    finally:
        await end_tasks([task])


async def revoke_all(sessions: Sessions) -> None:
    async with sessions.begin() as session:
        for key in await session.scalars(keys_of(None)):
            key.revoked_at = NOW


async def held_reading(keyring: Keyring, gated: GatedSessions, clock: Clock) -> "asyncio.Task[Principal]":
    """A key is read again because it is no longer fresh; the database has executed the query, and its result waits."""
    await keyring.authenticate(HEADER)
    clock.now += FRESH_S
    gated.gate.clear()
    reading = asyncio.create_task(keyring.authenticate(HEADER))
    await eventually(lambda: gated.num_held)
    return reading


async def break_database(sessions: Sessions) -> None:
    async with sessions.begin() as session:
        connection = await session.connection()
        await connection.exec_driver_sql("ALTER TABLE api_keys RENAME TO gone")


async def test_the_bootstrap_key_is_taken_by_a_new_database_only(sessions: Sessions) -> None:
    assert not await bootstrap_admin_key(sessions, "another-key-" + "x" * 32, pepper=PEPPER, now=NOW)
    principal = await Keyring(sessions, peppers=Peppers(PEPPER)).authenticate_key(ADMIN_KEY)
    assert principal.is_platform_admin


async def test_a_revoked_key_is_refused_after_two_seconds_without_being_told(sessions: Sessions) -> None:
    clock = Clock()
    keyring = Keyring(sessions, peppers=Peppers(PEPPER), clock=clock)
    await keyring.authenticate_key(ADMIN_KEY)
    await revoke_all(sessions)
    await keyring.authenticate_key(ADMIN_KEY)
    clock.now += FRESH_S
    with pytest.raises(Unauthenticated):
        await keyring.authenticate_key(ADMIN_KEY)


async def test_many_that_wait_for_a_reading_are_let_in_by_what_is_remembered(sessions: Sessions) -> None:
    class CountingPeppers(Peppers):
        num_asked = 0

        def likely(self, pepper_id: bytes | None) -> Iterable[str]:
            CountingPeppers.num_asked += 1
            return super().likely(pepper_id)

    clock = Clock()
    keyring = Keyring(sessions, peppers=CountingPeppers(PEPPER), clock=clock)
    await keyring.authenticate(HEADER)
    clock.now += FRESH_S
    assert keyring.known(HEADER) is None
    principals = await asyncio.gather(*(keyring.authenticate(HEADER) for _ in range(100)))
    assert all(principal.is_platform_admin for principal in principals)
    assert CountingPeppers.num_asked == 1
    clock.now += FRESH_S
    with pytest.raises(Unauthenticated):
        await keyring.authenticate(f"Bearer {ADMIN_KEY}x")
    assert CountingPeppers.num_asked == 2


async def test_known_keys_work_while_the_database_is_away_but_not_for_ever(sessions: Sessions) -> None:
    clock = Clock()
    keyring = Keyring(sessions, peppers=Peppers(PEPPER), clock=clock)
    await keyring.authenticate_key(ADMIN_KEY)
    await break_database(sessions)
    clock.now += 60
    await keyring.authenticate_key(ADMIN_KEY)
    clock.now += STALE_S
    with pytest.raises(Unavailable):
        await keyring.authenticate_key(ADMIN_KEY)


async def change(sessions: Sessions, **fields: object) -> None:
    """The platform's tenant."""
    async with sessions.begin() as session:
        for tenant in await session.scalars(tenants_visible_to(None)):
            for name, value in fields.items():
                setattr(tenant, name, value)


async def add_key(sessions: Sessions) -> str:
    return (await make_admin_key(sessions, name="new", pepper=PEPPER, now=NOW))[1]


async def test_a_header_that_was_let_in_is_known_without_a_query(gated: GatedSessions) -> None:
    keyring = Keyring(gated.as_sessions(), peppers=Peppers(PEPPER))
    assert keyring.known(HEADER) is None
    principal = await keyring.authenticate(HEADER)
    num_queries = gated.num_queries
    assert keyring.known(HEADER) is principal
    assert keyring.known(HEADER.encode()) is principal
    assert await keyring.authenticate(HEADER.encode()) is principal
    assert await keyring.authenticate_key(ADMIN_KEY) is principal
    assert gated.num_queries == num_queries
    for other in (HEADER + "a", HEADER[:-1], HEADER.lower(), ADMIN_KEY, "", "Bearer", HEADER[:-1] + "ü", "\ud800"):
        assert keyring.known(other) is None


@pytest.mark.parametrize("ending", [{"deleted_at": NOW}, {"suspended_at": NOW}])
@pytest.mark.parametrize("is_told", [False, True])
async def test_what_is_no_longer_let_in_is_not_known(
    sessions: Sessions, ending: dict[str, object], *, is_told: bool
) -> None:
    clock = Clock()
    keyring = Keyring(sessions, peppers=Peppers(PEPPER), clock=clock)
    await keyring.authenticate(HEADER)
    await change(sessions, **ending)
    assert keyring.known(HEADER) is not None
    if is_told:
        keyring.forget()
    else:
        clock.now += FRESH_S
    assert keyring.known(HEADER) is None
    with pytest.raises((Unauthenticated, Forbidden)):
        await keyring.authenticate(HEADER)
    assert keyring.known(HEADER) is None


async def test_a_changed_tier_is_known_after_the_next_reading(sessions: Sessions) -> None:
    keyring = Keyring(sessions, peppers=Peppers(PEPPER))
    await keyring.authenticate(HEADER)
    await change(sessions, tier="free")
    async with refreshing(keyring):
        await eventually(lambda: (known := keyring.known(HEADER)) is not None and known.tier == "free")


async def test_known_keys_go_on_at_once_while_the_database_hangs_but_not_for_ever(gated: GatedSessions) -> None:
    clock = Clock()
    keyring = Keyring(gated.as_sessions(), peppers=Peppers(PEPPER), clock=clock)
    principal = await keyring.authenticate(HEADER)
    gated.gate.clear()
    async with refreshing(keyring):
        await eventually(lambda: gated.num_held)
        clock.now += STALE_S - 1
        await eventually(lambda: keyring.known(HEADER))
        assert keyring.known(HEADER) is principal
        clock.now += 1
        assert keyring.known(HEADER) is None
        with pytest.raises(Unavailable):
            await keyring.authenticate(HEADER)
        gated.gate.set()
        await eventually(lambda: keyring.known(HEADER))


async def test_a_hanging_database_costs_the_first_request_a_moment_and_the_next_nothing(gated: GatedSessions) -> None:
    clock = Clock()
    keyring = Keyring(gated.as_sessions(), peppers=Peppers(PEPPER), clock=clock)
    principal = await keyring.authenticate(HEADER)
    gated.gate.clear()
    clock.now += 60
    assert keyring.known(HEADER) is None
    assert await keyring.authenticate(HEADER) is principal
    assert keyring.known(HEADER) is principal
    await revoke_all(gated.sessions)
    gated.gate.set()
    clock.now += 60
    await eventually(lambda: keyring.known(HEADER) is None)
    with pytest.raises(Unauthenticated):
        await keyring.authenticate(HEADER)


async def test_a_known_key_stays_known_where_a_busy_event_loop_hears_the_database_late(gated: GatedSessions) -> None:
    clock = Clock()
    keyring = Keyring(gated.as_sessions(), peppers=Peppers(PEPPER), clock=clock)
    reading = await held_reading(keyring, gated, clock)
    clock.now += FRESH_S - 0.1
    gated.gate.set()
    await reading
    # The next answer, or the alarm of a silent database, comes sooner than this.
    clock.now += REFRESH_S + AWAY_AFTER_S
    assert keyring.known(HEADER) is not None


async def test_an_answer_that_comes_late_does_not_bring_a_revoked_key_back(gated: GatedSessions) -> None:
    clock = Clock()
    keyring = Keyring(gated.as_sessions(), peppers=Peppers(PEPPER), clock=clock)
    await keyring.authenticate(HEADER)
    late, at_once = asyncio.Event(), gated.gate
    gated.gate = late
    async with refreshing(keyring):
        await eventually(lambda: gated.num_held)
        await revoke_all(gated.sessions)
        gated.gate = at_once
        clock.now += FRESH_S
        with pytest.raises(Unauthenticated):
            await keyring.authenticate(HEADER)
        # So that there is a key to be read again.
        await keyring.authenticate_key(await add_key(gated.sessions))
        num_queries, gated.gate = gated.num_queries, asyncio.Event()
        late.set()
        # The late answer was taken before the next question, whose answer is held back.
        await eventually(lambda: gated.num_queries > num_queries)
        with pytest.raises(Unauthenticated):
            await keyring.authenticate(HEADER)


async def test_a_change_during_a_reading_is_not_overlooked(gated: GatedSessions) -> None:
    clock = Clock()
    keyring = Keyring(gated.as_sessions(), peppers=Peppers(PEPPER), clock=clock)
    reading = await held_reading(keyring, gated, clock)
    await revoke_all(gated.sessions)
    keyring.forget()
    gated.gate.set()
    with pytest.raises(Unauthenticated):
        await keyring.authenticate(HEADER)
    await asyncio.wait([reading])
    reading.exception()
    assert keyring.known(HEADER) is None


async def test_a_key_that_was_asked_for_too_early_works_once_it_is_made(sessions: Sessions) -> None:
    keyring = Keyring(sessions, peppers=Peppers(PEPPER))
    early = make_key()
    with pytest.raises(Unauthenticated):
        await keyring.authenticate_key(early)
    async with sessions.begin() as session:
        for key in await session.scalars(keys_of(None)):
            key.prefix, key.secret_hash = lookup_prefix(early), hash_key(early, pepper=PEPPER)
    with pytest.raises(Unauthenticated):
        await keyring.authenticate_key(early)
    keyring.forget()
    await keyring.authenticate_key(early)


async def test_one_query_serves_all_who_ask_for_one_key(gated: GatedSessions) -> None:
    keyring = Keyring(gated.as_sessions(), peppers=Peppers(PEPPER))
    principals = await asyncio.gather(*(keyring.authenticate(HEADER) for _ in range(200)))
    assert len(set(principals)) == 1
    assert gated.num_queries == 1


async def test_a_flood_of_unknown_keys_delays_a_new_one_by_few_queries_and_known_ones_not_at_all(
    gated: GatedSessions,
) -> None:
    keyring = Keyring(gated.as_sessions(), peppers=Peppers(PEPPER), clock=Clock())
    await keyring.authenticate(HEADER)
    new = await add_key(gated.sessions)
    gated.num_queries = 0
    gated.gate.clear()
    flood = [asyncio.create_task(keyring.authenticate_key(make_key())) for _ in range(3000)]
    late = asyncio.create_task(keyring.authenticate_key(new))
    await eventually(lambda: gated.num_held)
    assert keyring.known(HEADER) is not None
    gated.gate.set()
    assert (await late).is_platform_admin
    outcomes = await asyncio.gather(*flood, return_exceptions=True)
    assert all(isinstance(outcome, Unauthenticated) for outcome in outcomes)
    assert gated.num_queries <= 3000 / BATCH + 3
    assert gated.most_at_once <= MAX_READERS


async def test_a_client_that_leaves_does_not_take_others_with_it(gated: GatedSessions) -> None:
    keyring = Keyring(gated.as_sessions(), peppers=Peppers(PEPPER))
    gated.gate.clear()
    first, second = (asyncio.create_task(keyring.authenticate(HEADER)) for _ in range(2))
    await eventually(lambda: gated.num_held)
    first.cancel()
    gated.gate.set()
    assert (await second).is_platform_admin


async def test_a_wrong_secret_behind_a_right_prefix_is_refused(sessions: Sessions) -> None:
    with pytest.raises(Unauthenticated):
        await Keyring(sessions, peppers=Peppers(PEPPER)).authenticate_key(ADMIN_KEY[:-1] + "b")


async def test_another_pepper_knows_no_key(sessions: Sessions) -> None:
    with pytest.raises(Unauthenticated):
        await Keyring(sessions, peppers=Peppers("another pepper")).authenticate_key(ADMIN_KEY)


def test_keys_differ_and_hash_apart() -> None:
    keys = {make_key() for _ in range(100)}
    assert len(keys) == len({hash_key(key, pepper=PEPPER) for key in keys}) == 100
    assert all(key.split("-")[1] == lookup_prefix(key) for key in keys)
    assert is_same_hash(hash_key("a", pepper=PEPPER), hash_key("a", pepper=PEPPER))
