"""`tiergate audit verify`: with the database and the pepper alone."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.cli import refusal, tiergate
from tests.support.gateways import copy_database

PEPPER = "a-pepper-that-is-long-enough"


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    copy_database(tmp_path / "tiergate.db")
    found = {"TIERGATE_KEY_PEPPER": PEPPER, "TIERGATE_DATA_DIR": str(tmp_path)}
    for _ in range(3):
        assert tiergate("admin-key", env=found).returncode == 0
    return found


def test_a_log_that_holds_says_what_it_ends_in_for_the_next_time(environment: dict[str, str]) -> None:
    said = tiergate("audit", "verify", env=environment)
    assert (said.returncode, said.stderr) == (0, "")
    assert said.stdout.startswith("3 rows hold; they end in 3:")
    end = said.stdout.split()[-1]
    tiergate("admin-key", env=environment)
    later = json.loads(tiergate("audit", "verify", "--since", end, "--json", env=environment).stdout)
    assert (later["is_intact"], later["num_rows"]) == (True, 4)


def test_the_first_bad_row_is_told_with_exit_code_1(environment: dict[str, str]) -> None:
    with closing(sqlite3.connect(Path(environment["TIERGATE_DATA_DIR"]) / "tiergate.db")) as file:
        file.execute("UPDATE audit_log SET object_id = 'x' WHERE position >= 2")
        file.commit()
    assert "row 2: it is not as it was written" in refusal("audit", "verify", env=environment, exit_code=1)
    ended = tiergate("audit", "verify", "--json", env=environment)
    assert ended.returncode == 1
    assert (json.loads(ended.stdout)["is_intact"], json.loads(ended.stdout)["position"]) == (False, 2)


def test_another_pepper_and_a_bad_anchor_are_told(environment: dict[str, str]) -> None:
    other = environment | {"TIERGATE_KEY_PEPPER": "another-pepper-than-that"}
    assert "no seal under this pepper" in refusal("audit", "verify", env=other, exit_code=1)
    assert "ROWS:HASH" in refusal("audit", "verify", "--since", "3", env=environment)
    assert "there is no file" in refusal(
        "audit", "verify", env=environment | {"TIERGATE_DATA_DIR": "/no/such/folder"}, exit_code=1
    )
