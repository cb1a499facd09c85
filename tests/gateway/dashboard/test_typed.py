import json
from uuid import UUID

import pytest
from pydantic import BaseModel, ValidationError

from gateway.admin.invoices import InvoiceDraft
from gateway.admin.keys import KeyDraft
from gateway.admin.tenants import TenantDraft
from gateway.admin.tiers import TierDraft
from gateway.dashboard.typed import CHECKED, SEEN, Form, Stale, Standing, Typed, changed_fields
from gateway.http.errors import Conflict, NotFound


def typed(**fields: str | list[str]) -> Typed:
    return Typed({name: [value] if isinstance(value, str) else value for name, value in fields.items()}, is_sent=True)


def refused(draft: type[BaseModel], fields: dict[str, object], sent: Typed) -> Typed:
    with pytest.raises(ValidationError) as caught:
        draft.model_validate(fields)
    return sent.refused(caught.value)


def test_every_problem_stands_at_its_field_in_words_for_people() -> None:
    sent = Typed({"name": [""], "tier": ["x"], "limits.concurrency": ["many"]}, is_sent=True)
    found = refused(TenantDraft, {"name": "", "tier": "x", "limits": {"concurrency": "many"}}, sent)
    assert found.problems == {
        "name": "This is needed.",
        "limits.concurrency": "Write a whole number, such as 5000.",
    }
    assert found.status == 400


def test_a_pattern_is_told_in_words() -> None:
    draft = {"tenant_id": str(UUID(int=1)), "month": "November"}
    assert refused(InvoiceDraft, draft, typed(month="November")).problems == {
        "month": "Write a month, such as 2026-05."
    }
    found = refused(TierDraft, {"name": "a b"}, typed(name="a b"))
    assert found.problems == {"name": "Write letters, digits, and _ . - alone."}


def test_what_is_wrong_within_a_list_stands_at_the_list() -> None:
    sent = typed(name="k", allowed_networks="192.0.2.0/24\nnowhere")
    found = refused(KeyDraft, {"name": "k", "allowed_networks": ["192.0.2.0/24", "nowhere"]}, sent)
    assert list(found.problems) == ["allowed_networks"] and "CIDR" in found.problems["allowed_networks"]


def test_an_errors_parameter_is_its_field_and_others_are_the_whole_forms() -> None:
    assert typed(name="a").refused(Conflict("taken", param="name")).problems == {"name": "Taken."}
    found = typed(name="a").refused(NotFound("there is no such tenant"))
    assert (found.problems, found.status) == ({"": "There is no such tenant."}, 404)


STANDING: Standing = {"name": "acme", "is_local_only": "", "scopes": ["usage", "inference"], "networks": "a\nb"}


def sent_with(standing: Standing, **fields: str | list[str]) -> Typed:
    unchanged = typed(name="acme", scopes=["inference", "usage"], networks="a\r\nb\r\n")
    return Typed({**unchanged.fields, **typed(**fields).fields, SEEN: [Form(Typed(), standing).seen]}, is_sent=True)


def test_only_what_was_changed_is_told_whatever_the_browser_makes_of_lines_and_order() -> None:
    assert changed_fields(sent_with(STANDING), STANDING) == set()
    sent = sent_with(STANDING, name="new", is_local_only=CHECKED, scopes=["usage"])
    assert changed_fields(sent, STANDING) == {"name", "is_local_only", "scopes"}


def test_a_change_elsewhere_is_refused_with_both_values_and_passes_when_it_was_seen() -> None:
    before = {**STANDING, "name": "old"}
    sent = sent_with(before, name="mine")
    with pytest.raises(Stale) as caught:
        changed_fields(sent, STANDING)
    shown = sent.refused(caught.value)
    assert shown.status == 409
    assert shown.problems["name"] == "Now it is \u201cacme\u201d; you typed \u201cmine\u201d."
    again = Form(shown, STANDING)
    assert again.value("name") == "mine", "nothing of what was typed is lost"
    assert changed_fields(sent_with(json.loads(again.seen), name="mine"), STANDING) == {"name"}


@pytest.mark.parametrize("seen", ["", "[]", "no json", "null"])
def test_a_form_that_does_not_say_what_it_saw_is_no_bug(seen: str) -> None:
    sent = Typed({"name": ["mine"], SEEN: [seen]}, is_sent=True)
    assert changed_fields(sent, {"name": "acme"}) == {"name"}


def test_fields_show_what_stands_until_something_was_typed() -> None:
    form = Form(Typed(), STANDING)
    assert form.value("name") == "acme" and form.has("scopes", "usage") and not form.has("is_local_only")
    form = Form(typed(name="x", is_local_only=CHECKED), STANDING)
    assert form.value("name") == "x" and not form.has("scopes", "usage") and form.has("is_local_only")
