"""What becomes a row, and what is refused with its reason."""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from gateway.metering.intake import Intake, Landed
from gateway.metering.journal import encode_event
from gateway.metering.schema import connect_migrated
from gateway.metering.store import UsageStore
from gateway.metering.validation import InvalidEvent, parse_event
from tests.support.events import make_event

NOW = datetime(2026, 3, 5, tzinfo=UTC)


class Rows:
    """A source in memory."""

    def __init__(self, *events: bytes) -> None:
        self.waiting = dict(enumerate(events))
        self.refused: dict[int, str] = {}

    def delete_closed(self, seqs: Iterable[int]) -> None:
        for seq in seqs:
            del self.waiting[seq]

    def refuse(self, seq: int, reason: str) -> None:
        self.refused[seq] = reason
        del self.waiting[seq]


def as_json(request_id: str, **fields: object) -> bytes:
    return msgspec.json.encode(msgspec.to_builtins(make_event(request_id)) | fields)


@pytest.mark.parametrize(
    ("event", "kind"),
    [
        (b"{", "undecodable"),
        (b"\xff", "undecodable"),
        (b'{"request_id":"r"}', "undecodable"),
        (as_json("r", status="fine"), "undecodable"),
        (as_json("r", schema_version=99), "schema_version"),
        (as_json("r", schema_version=0), "schema_version"),
        (as_json("r", timestamp="2026-03-06T00:00:01Z"), "future"),
        (as_json("r", timestamp="2026-03-04T00:00:01"), "timestamp"),
        (as_json("r", prompt_tokens=-1), "out_of_range"),
        (as_json("r", completion_tokens=-5), "out_of_range"),
        (as_json("r", tenant_id=""), "unnamed"),
    ],
)
def test_an_event_that_cannot_be_true_is_named_by_its_kind(event: bytes, kind: str) -> None:
    with pytest.raises(InvalidEvent) as caught:
        parse_event(event, now=NOW)
    assert caught.value.kind == kind
    assert str(caught.value).startswith(f"{kind}: ")


def test_an_event_of_a_clock_that_is_a_little_fast_is_taken() -> None:
    event = make_event("r", timestamp=NOW + timedelta(hours=23))
    assert parse_event(encode_event(event), now=NOW) == event


def test_a_duplicate_that_bills_another_amount_is_refused_and_the_first_one_stands(
    store: UsageStore, clickhouse_url: str
) -> None:
    landed: list[Landed] = []
    intake = Intake(store, clock=lambda: NOW, on_landed=landed.append)
    first = encode_event(make_event("r1", completion_tokens=30))
    other = encode_event(make_event("r1", completion_tokens=31))
    rows = Rows(first, encode_event(make_event("r2")), other)
    intake.land(rows, list(rows.waiting.items()))
    later = Rows(first, other)
    intake.land(later, list(later.waiting.items()))
    assert rows.refused == {2: "differing_duplicate: completion_tokens 30 -> 31"}
    assert later.refused == {1: "differing_duplicate: completion_tokens 30 -> 31"}
    assert [each.num_inserted for each in landed] == [2, 1]
    with connect_migrated(clickhouse_url) as client:
        found = client.query("SELECT request_id, completion_tokens FROM usage_events FINAL ORDER BY 1").result_rows
    assert found == [("r1", 30), ("r2", 30)]


def test_a_verdict_of_another_version_is_no_duplicate(store: UsageStore) -> None:
    rows = Rows(
        encode_event(make_event("r1", status="lost", completion_tokens=1)),
        encode_event(make_event("r1", status="ok", completion_tokens=30)),
    )
    Intake(store, clock=lambda: NOW).land(rows, list(rows.waiting.items()))
    assert rows.refused == {} and rows.waiting == {}
