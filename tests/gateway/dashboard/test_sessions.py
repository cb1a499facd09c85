from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from gateway.dashboard.cookies import Session, SessionSigner
from gateway.dashboard.login_brake import MAX_FAILURES, MAX_FAILURES_OF_ALL, WINDOW_S, FailedLogins
from gateway.peppers import Peppers

NOW = datetime(2026, 3, 4, tzinfo=UTC)
PEPPERS = Peppers("pepper")
SESSION = Session(UUID(int=7), "abcdefgh", NOW + timedelta(hours=1), UUID(int=9))


def test_a_cookie_tells_who_until_it_expires() -> None:
    signer = SessionSigner(PEPPERS)
    assert signer.unseal(signer.seal(SESSION), now=NOW) == SESSION
    assert signer.unseal(signer.seal(SESSION), now=SESSION.expires_at) is None


@pytest.mark.parametrize("change", ["", ".", "x", "é.é", "{0}x", "x{0}", "{1}.{1}", "{2}.{3}"])
def test_a_cookie_that_is_not_ours_is_nothing(change: str) -> None:
    cookie = SessionSigner(PEPPERS).seal(SESSION)
    other = SessionSigner(PEPPERS).seal(Session(UUID(int=8), "abcdefgh", SESSION.expires_at, SESSION.visit_id))
    forged = change.format(cookie, cookie.split(".")[0], other.split(".")[0], cookie.split(".")[1])
    assert SessionSigner(PEPPERS).unseal(forged, now=NOW) is None


def test_another_pepper_signs_otherwise() -> None:
    assert SessionSigner(PEPPERS).unseal(SessionSigner(Peppers("salt")).seal(SESSION), now=NOW) is None


def test_a_form_token_belongs_to_one_session() -> None:
    signer = SessionSigner(PEPPERS)
    other = Session(SESSION.holder_id, SESSION.prefix, SESSION.expires_at + timedelta(seconds=1), SESSION.visit_id)
    assert signer.is_form_token(signer.form_tokens(SESSION)[0], SESSION)
    assert not signer.is_form_token(signer.form_tokens(other)[0], SESSION)
    assert not signer.is_form_token("é", SESSION)


def test_wrong_keys_are_braked_by_address_and_the_brake_lets_go() -> None:
    failed = FailedLogins()
    for i in range(MAX_FAILURES):
        assert failed.wait_s("a", now=float(i)) == 0
        failed.note("a", now=float(i))
    assert failed.wait_s("a", now=20) == WINDOW_S - 20
    assert failed.wait_s("b", now=20) == 0
    assert failed.wait_s("a", now=WINDOW_S) == 0


def test_the_addresses_of_one_ipv6_network_are_one() -> None:
    failed = FailedLogins()
    for i in range(MAX_FAILURES):
        failed.note(f"2001:db8::{i:x}", now=0)
    assert failed.wait_s("2001:db8::ffff", now=1) > 0
    assert failed.wait_s("2001:db8:0:1::", now=1) == 0


def test_guessing_from_many_addresses_is_braked_for_all() -> None:
    failed = FailedLogins()
    for i in range(MAX_FAILURES_OF_ALL):
        assert failed.wait_s("unrelated", now=0) == 0
        failed.note(f"192.0.2.{i}", now=0)
    assert failed.wait_s("unrelated", now=1) == WINDOW_S - 1
    assert failed.wait_s("unrelated", now=WINDOW_S) == 0
