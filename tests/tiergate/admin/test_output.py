import json

import pytest

from tiergate.admin.output import fitted, show_row, show_rows

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


def test_money_is_shown_as_money_and_stays_exact(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"model": "m", "cost_nanousd": cost} for cost in (0, 100, -1_230_000_000, 1_234_567_000_000_001)]
    show_rows(rows, as_json=False)
    shown = capsys.readouterr().out.splitlines()
    assert [line.split()[-1] for line in shown] == ["cost", "$0.00", "$0.0000001", "-$1.23", "$1,234,567.000000001"]
    show_row(rows[1], as_json=False)
    assert capsys.readouterr().out == "model  m\ncost   $0.0000001\n"
    show_row(rows[1], as_json=True)
    assert json.loads(capsys.readouterr().out)["cost_nanousd"] == 100


def test_a_table_fits_the_terminal_or_its_rows_are_told_one_after_another() -> None:
    cells = [["name", "requests_per_minute"], ["acme", "5"], ["a-long-name", "-"]]
    table = fitted(cells, width=40)
    assert max(map(len, table.splitlines())) <= 40 and "a-long-name" in table
    assert fitted(cells, width=30) == (
        "name                 acme\nrequests_per_minute  5\n\nname                 a-long-name\nrequests_per_minute  -"
    )
