"""Whatever somebody with the database alone does to the audit log shows, on SQLite and on PostgreSQL."""

import asyncio
import json
import os
import random
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import delete, insert, select, text

from gateway.database import Sessions, open_sessions
from gateway.domain.audit.chain import BLANK, GENESIS, Contents, Frame, hash_contents, link, link_old, seal_of
from gateway.domain.audit.erasing import erase_contents
from gateway.domain.audit.models import AuditEntry, AuditHead
from gateway.domain.audit.service import record
from gateway.domain.audit.verification import Anchor, BrokenChain, verify
from gateway.domain.keys.keyring import Keyring
from gateway.domain.keys.service import change_key, create_key, make_admin_key, rotate_key
from gateway.domain.principal import Principal
from gateway.domain.tenants.service import change_tenant, create_tenant
from gateway.domain.tools.service import create_tool
from gateway.peppers import Peppers
from tests.gateway.domain.conftest import NOW, PEPPER

NUM_ROWS = 24
NUM_HISTORIES = 500
Row = dict[str, Any]


@dataclass
class History:
    rows: list[Row]
    head: Row | None
    first_bad: int | None = field(default=None)
    """Where that is certain."""

    def rechain(self) -> None:
        """What anybody can do who knows how, without the pepper."""
        last = GENESIS
        for row in self.rows:
            if not row["is_erased"]:
                row["contents_hash"] = hash_contents(row["salt"], contents_of(row))
            row["hash"] = last = link(last, frame_of(row), row["contents_hash"])
        assert self.head is not None
        self.head |= {"num_rows": len(self.rows), "hash": last}


def frame_of(row: Row) -> Frame:
    return Frame(**{name: row[name] for name in Frame._fields})


def contents_of(row: Row) -> Contents:
    values = {name: row[name] for name in Contents._fields}
    return Contents(**{name: json.dumps(value) if isinstance(value, dict) else value for name, value in values.items()})


def change(history: History, dice: random.Random) -> None:
    row = dice.choice(history.rows)
    name = dice.choice([name for name in row if name not in ("position",)])
    other: dict[str, Any] = {
        "id": uuid4(),
        "at": NOW.replace(year=2025),
        "hash": dice.randbytes(32),
        "salt": dice.choice((None, dice.randbytes(16))),
        "contents_hash": dice.choice((None, dice.randbytes(32))),
        "is_erased": True,
        "actor_key_id": uuid4(),
        "tenant_id": uuid4(),
        "detail": {"name": "other"},
        "before": {"name": "other"},
        "after": {"name": "other", "tier": None},
    }
    row[name] = other.get(name, "other")
    history.first_bad = row["position"]


def remove(history: History, dice: random.Random) -> None:
    number = dice.randrange(len(history.rows) - 1)
    del history.rows[number]
    history.first_bad = number + 2
    if dice.random() < 0.5:
        for row in history.rows[number:]:
            row["position"] -= 1
        history.first_bad = number + 1


def swap(history: History, dice: random.Random) -> None:
    one, other = sorted(dice.sample(range(len(history.rows)), 2))
    rows = history.rows
    rows[one], rows[other] = (
        rows[other] | {"position": rows[one]["position"]},
        rows[one] | {"position": rows[other]["position"]},
    )
    history.first_bad = one + 1


def append(history: History, dice: random.Random) -> None:
    assert history.head is not None
    added = history.rows[-1] | {"id": uuid4(), "position": len(history.rows) + 1, "hash": dice.randbytes(32)}
    history.rows.append(added)
    history.first_bad = added["position"]
    how = dice.choice(("plain", "with head", "with chain", "before the first"))
    if how == "with head":
        history.head |= {"num_rows": len(history.rows), "hash": added["hash"]}
    elif how == "with chain":
        history.rechain()
    elif how == "before the first":
        added["position"] = -dice.randrange(5)
        history.first_bad = added["position"]


def cut(history: History, dice: random.Random) -> None:
    assert history.head is not None
    kept = dice.randrange(NUM_ROWS)
    del history.rows[kept:]
    how = dice.choice(("plain", "with head", "without seal", "without head"))
    if how == "without head":
        history.head = None
    elif how != "plain":
        last = history.rows[-1]["hash"] if kept else GENESIS
        history.head |= {"num_rows": kept, "hash": last}
        if how == "without seal":
            history.head["seal"] = None


def rewrite(history: History, dice: random.Random) -> None:
    dice.choice(history.rows)["object_id"] = "other"
    history.rechain()


def pass_off_as_erased(history: History, dice: random.Random) -> None:
    row = dice.choice(history.rows)
    row |= BLANK._asdict() | {"detail": {}, "salt": None, "is_erased": True}
    history.first_bad = row["position"]
    if dice.random() < 0.5:
        # As a row of old, whose hash covers its contents.
        row["contents_hash"] = None


MANIPULATIONS = (change, remove, swap, append, cut, rewrite, pass_off_as_erased)


@pytest.fixture
async def sealed(sessions: Sessions) -> AsyncIterator[Sessions]:
    """As a gateway opens them, over an empty log."""
    async with sessions.begin() as session:
        await session.execute(delete(AuditEntry))
        await session.execute(text("UPDATE audit_head SET num_rows = 0, hash = :hash, seal = NULL"), {"hash": GENESIS})
    url = sessions.kw["bind"].url.render_as_string(hide_password=False)
    async with open_sessions(url, peppers=Peppers(PEPPER)) as opened:
        yield opened


async def write_history(sealed: Sessions, num_rows: int = NUM_ROWS) -> None:
    for number in range(num_rows):
        actor = Principal(uuid4(), "acme", uuid4(), "pro", frozenset({"platform-admin"}))
        async with sealed.begin() as session:
            await record(
                session,
                actor if number % 3 else None,
                "tenant.change",
                object_id=f"object-{number}",
                tenant_id=actor.tenant_id if number % 2 else None,
                now=NOW + timedelta(hours=1),
                detail={"é": [number, None, 0.1]},
                before={"name": "a", "tier": "free"} if number % 4 else None,
                after={"name": f"ü{number}", "tier": "free"},
            )


async def read_history(sealed: Sessions) -> History:
    entries, heads = AuditEntry.__table__, AuditHead.__table__
    async with sealed() as session:
        rows = (await session.execute(select(entries).order_by(entries.c.position))).mappings()
        head = (await session.execute(select(heads))).mappings().one()
    return History([dict(row) for row in rows], dict(head))


async def write_back(sealed: Sessions, history: History) -> None:
    async with sealed.begin() as session:
        await session.execute(delete(AuditEntry))
        await session.execute(delete(AuditHead))
        if history.rows:
            await session.execute(insert(AuditEntry), history.rows)
        if history.head is not None:
            await session.execute(insert(AuditHead), [history.head])


async def test_every_manipulated_history_is_found(sealed: Sessions) -> None:
    await make_admin_key(sealed, name="k", pepper=PEPPER, now=NOW)
    await write_history(sealed, NUM_ROWS - 1)
    whole = await read_history(sealed)
    assert len(whole.rows) == NUM_ROWS
    assert (await verify(sealed, peppers=Peppers(PEPPER))).num_rows == NUM_ROWS
    num_found = 0
    for seed in range(NUM_HISTORIES):
        dice = random.Random(seed)
        history = History([dict(row) for row in whole.rows], dict(whole.head or {}))
        MANIPULATIONS[seed % len(MANIPULATIONS)](history, dice)
        await write_back(sealed, history)
        with pytest.raises(BrokenChain) as found:
            await verify(sealed, peppers=Peppers(PEPPER))
        if history.first_bad is not None:
            assert found.value.position == history.first_bad, (seed, str(found.value))
        num_found += 1
    assert num_found == NUM_HISTORIES
    await write_back(sealed, whole)
    await verify(sealed, peppers=Peppers(PEPPER))


@pytest.mark.parametrize("manipulate", [cut, rewrite, append], ids=lambda each: each.__name__)
async def test_what_is_written_after_a_manipulation_does_not_hide_it(sealed: Sessions, manipulate: Any) -> None:
    await make_admin_key(sealed, name="k", pepper=PEPPER, now=NOW)
    await write_history(sealed)
    whole = await read_history(sealed)
    for seed in range(40):
        history = History([dict(row) for row in whole.rows], dict(whole.head or {}))
        manipulate(history, random.Random(seed))
        await write_back(sealed, history)
        await write_history(sealed, 2)
        with pytest.raises(BrokenChain):
            await verify(sealed, peppers=Peppers(PEPPER))


async def test_who_vouches_for_the_rows_until_somewhere_goes_on_from_there(sealed: Sessions) -> None:
    await make_admin_key(sealed, name="k", pepper=PEPPER, now=NOW)
    await write_history(sealed)
    earlier = await verify(sealed, peppers=Peppers(PEPPER))
    old = await read_history(sealed)
    await write_history(sealed, 3)
    later = await verify(sealed, peppers=Peppers(PEPPER), since=earlier)
    assert later.num_rows == earlier.num_rows + 3
    with pytest.raises(BrokenChain, match="another"):
        await verify(sealed, peppers=Peppers(PEPPER), since=Anchor(earlier.num_rows, bytes(32)))
    # An older copy of everything, seal and all, is found by that alone.
    await write_back(sealed, old)
    await verify(sealed, peppers=Peppers(PEPPER))
    with pytest.raises(BrokenChain, match="but had"):
        await verify(sealed, peppers=Peppers(PEPPER), since=later)
    # What the upgrade found has no seal: somebody has to say that it was right.
    await write_back(sealed, History(old.rows, (old.head or {}) | {"seal": None}))
    with pytest.raises(BrokenChain, match="no seal"):
        await verify(sealed, peppers=Peppers(PEPPER))
    await verify(sealed, peppers=Peppers(PEPPER), since=earlier)
    await write_history(sealed, 2)
    with pytest.raises(BrokenChain, match="no seal"):
        await verify(sealed, peppers=Peppers(PEPPER))
    assert (await verify(sealed, peppers=Peppers(PEPPER), since=earlier)).num_rows == earlier.num_rows + 3
    with pytest.raises(BrokenChain, match="pepper"):
        await verify(sealed, peppers=Peppers("another-pepper-than-that"), since=earlier)


async def rewrite_as_of_old(sealed: Sessions) -> None:
    """The rows as they stood before contents had hashes of their own; the upgrade leaves the seal of then."""
    history = await read_history(sealed)
    last = GENESIS
    for row in history.rows:
        row |= {"salt": None, "contents_hash": None}
        row["hash"] = last = link_old(last, frame_of(row), contents_of(row))
    assert history.head is not None
    history.head |= {"hash": last, "seal": seal_of(len(history.rows), last, pepper=PEPPER)}
    await write_back(sealed, history)


@pytest.mark.parametrize("are_old", [False, True], ids=["new", "of old"])
async def test_contents_can_be_erased_and_the_log_still_holds(sealed: Sessions, are_old: bool) -> None:
    await make_admin_key(sealed, name="k", pepper=PEPPER, now=NOW)
    await write_history(sealed)
    if are_old:
        await rewrite_as_of_old(sealed)
    before = await verify(sealed, peppers=Peppers(PEPPER))
    which = AuditEntry.object_id.in_(["object-3", "object-7", "object-20"])
    assert await erase_contents(sealed, which, tenant_id=None, why={"why": "a test"}, now=NOW) == 3
    assert await erase_contents(sealed, which, tenant_id=None, why={}, now=NOW) == 0
    found = await verify(sealed, peppers=Peppers(PEPPER), since=before)
    assert (found.num_rows, found.num_erased) == (before.num_rows + 1, 3)
    await write_history(sealed, 2)
    whole = await read_history(sealed)
    erased = [row for row in whole.rows if row["is_erased"]]
    assert [(contents_of(row), row["salt"]) for row in erased] == [(BLANK, None)] * 3
    # Nothing that is left of an erased row can be altered, nor can the row that names it.
    for number, row in enumerate(whole.rows):
        if not row["is_erased"] and row["action"] != "audit.erase":
            continue
        for seed in range(25):
            history = History([dict(each) for each in whole.rows], dict(whole.head or {}))
            change(History([history.rows[number]], None), random.Random(seed))
            if history.rows == whole.rows:
                continue
            await write_back(sealed, history)
            with pytest.raises(BrokenChain):
                await verify(sealed, peppers=Peppers(PEPPER))
    await write_back(sealed, whole)
    assert (await verify(sealed, peppers=Peppers(PEPPER))).num_erased == 3


async def test_a_forged_erasure_has_no_seal(sealed: Sessions) -> None:
    await make_admin_key(sealed, name="k", pepper=PEPPER, now=NOW)
    await write_history(sealed)
    url = sealed.kw["bind"].url.render_as_string(hide_password=False)
    async with open_sessions(url, peppers=Peppers("the-pepper-of-a-forger")) as forger:
        which = AuditEntry.object_id == "object-5"
        assert await erase_contents(forger, which, tenant_id=None, why={}, now=NOW) == 1
    with pytest.raises(BrokenChain, match="seal"):
        await verify(sealed, peppers=Peppers(PEPPER))


async def test_several_gateways_write_one_chain(sealed: Sessions) -> None:
    url = sealed.kw["bind"].url.render_as_string(hide_password=False)
    await make_admin_key(sealed, name="k", pepper=PEPPER, now=NOW)
    async with open_sessions(url, peppers=Peppers(PEPPER)) as other:
        names = [
            (sessions, f"chain-{number}-{os.urandom(4).hex()}") for number in range(12) for sessions in (sealed, other)
        ]
        await asyncio.gather(*(create_tenant(each, None, name=name, tier="free", now=NOW) for each, name in names))
    assert (await verify(sealed, peppers=Peppers(PEPPER))).num_rows == len(names) + 1


async def test_a_change_shows_what_was_before_and_after_and_no_secret(sealed: Sessions) -> None:
    _, secret = await make_admin_key(sealed, name="k", pepper=PEPPER, now=NOW)
    admin = await Keyring(sealed, peppers=Peppers(PEPPER)).authenticate_key(secret)
    tenant = await create_tenant(sealed, admin, name=f"audited-{os.urandom(4).hex()}", tier="free", now=NOW)
    await change_tenant(sealed, admin, tenant.id, tier="pro", is_local_only=False, now=NOW)
    key, made = await create_key(
        sealed, admin, tenant_id=tenant.id, name="k", scopes=["inference"], pepper=PEPPER, now=NOW
    )
    await change_key(sealed, admin, key.id, {"name": "renamed"}, now=NOW)
    _, rotated, _ = await rotate_key(sealed, admin, key.id, overlap=NOW - NOW, pepper=PEPPER, now=NOW)
    fields = {"name": "t", "description": "d", "parameters": {"a": "x" * 9000}, "url": "https://example.com/"}
    fields |= {"timeout_s": 1.0, "max_result_bytes": 9, "max_rounds": 1, "is_enabled": True}
    credential = ("X-Key", "s3cret-of-a-tool")
    await create_tool(sealed, admin, tenant_id=tenant.id, fields=fields, credential=credential, pepper=PEPPER, now=NOW)
    rows = {row["action"]: row for row in (await read_history(sealed)).rows}
    assert rows["tenant.create"]["before"] is None and rows["tenant.create"]["after"]["tier"] == "free"
    assert (rows["tenant.change"]["before"], rows["tenant.change"]["after"]) == ({"tier": "free"}, {"tier": "pro"})
    assert (rows["key.change"]["before"], rows["key.change"]["after"]) == ({"name": "k"}, {"name": "renamed"})
    assert rows["key.rotate"]["after"]["prefix"] != rows["key.rotate"]["before"]["prefix"]
    assert rows["tool.create"]["after"]["parameters"]["num_chars"] > 9000
    assert all(row["actor_key_id"] == admin.key_id for action, row in rows.items() if action != "key.admin")
    written = json.dumps([*rows.values()], default=str)
    for hidden in (*(each.split("-", 2)[2] for each in (secret, made, rotated)), credential[1]):
        assert hidden not in written
    assert not {"secret_hash", "previous_secret_hash", "sealed_credential"} & {
        *rows["key.rotate"]["after"],
        *rows["tool.create"]["after"],
    }
    await verify(sealed, peppers=Peppers(PEPPER))
