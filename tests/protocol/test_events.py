from datetime import UTC, datetime

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from protocol.accounting import Accounting, accounting_comment, parse_accounting, parse_tokens, tokens_comment
from protocol.ids import make_uuid7
from protocol.usage import UsageEvent


def test_a_usage_event_comes_back() -> None:
    event = UsageEvent(
        request_id="r",
        tenant_id="t",
        key_id="k",
        model_version="v",
        pool="small",
        requested_model="auto",
        route_reason="simple",
        complexity=0.25,
        prompt_tokens=7,
        completion_tokens=3,
        cost_nanousd=2**60,
        status="ok",
        tier="free",
        price_version="1",
        timestamp=datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC),
    )
    assert msgspec.json.decode(msgspec.json.encode(event), type=UsageEvent) == event


@given(ids=st.lists(st.integers(0, 2**31)), index=st.integers(0, 127))
def test_token_ids_come_back(ids: list[int], index: int) -> None:
    assert parse_tokens(tokens_comment(ids, index=index).rstrip(b"\n")) == (index, ids)


def test_accounting_comes_back() -> None:
    accounting = Accounting(
        prompt_tokens=1,
        cached_prompt_tokens=2,
        completion_tokens=3,
        queue_ms=0.5,
        compute_ms=1.5,
        worker_id="w",
        finish_reason="stop",
    )
    assert parse_accounting(accounting_comment(accounting).rstrip(b"\n")) == accounting


@given(first=st.integers(0, 2**47), later=st.integers(1, 10**6))
def test_ids_sort_by_time(first: int, later: int) -> None:
    assert make_uuid7(first).hex < make_uuid7(first + later).hex


@given(now_ms=st.integers(0, 2**48 - 1))
def test_an_id_is_a_version_7_uuid_with_its_time(now_ms: int) -> None:
    made = make_uuid7(now_ms)
    assert (made.version, made.variant, made.int >> 80) == (7, "specified in RFC 4122", now_ms)
    assert made != make_uuid7(now_ms)
