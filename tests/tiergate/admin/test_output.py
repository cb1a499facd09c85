import json

import pytest

from tiergate.admin.output import show_row, show_rows

ROWS = [{"name": "acme", "limit": None, "scopes": ["a"], "ms": 1.23456789}, {"name": "x", "limit": 5, "scopes": []}]


def test_rows_stand_in_columns_that_a_script_can_cut(capsys: pytest.CaptureFixture[str]) -> None:
    show_rows(ROWS, as_json=False)
    assert capsys.readouterr().out == 'name  limit  scopes  ms\nacme  -      ["a"]   1.23457\nx     5      []      -\n'


def test_json_has_every_field_unrounded(capsys: pytest.CaptureFixture[str]) -> None:
    show_rows(ROWS, ("name",), as_json=True)
    assert json.loads(capsys.readouterr().out) == ROWS


def test_no_rows_are_said(capsys: pytest.CaptureFixture[str]) -> None:
    show_rows([], ("name",), as_json=False)
    show_rows([], ("name",), as_json=True)
    assert capsys.readouterr().out == "none\n[]\n"


def test_a_row_is_shown_one_field_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    show_row({"id": "1", "suspended_at": None}, as_json=False)
    assert capsys.readouterr().out == "id            1\nsuspended_at  -\n"
