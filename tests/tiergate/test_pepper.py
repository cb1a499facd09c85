"""`tiergate pepper`: with the database and the peppers alone."""

import json
from pathlib import Path

import pytest

from tests.support.cli import refusal, tiergate
from tests.support.gateways import copy_database

OLD, NEW = "a-pepper-that-is-long-enough", "the-pepper-that-follows"


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    copy_database(tmp_path / "tiergate.db")
    found = {"TIERGATE_KEY_PEPPER": OLD, "TIERGATE_DATA_DIR": str(tmp_path)}
    assert tiergate("admin-key", "--name", "operator", env=found).returncode == 0
    return found


def test_status_counts_and_names_the_keys_that_keep_the_old_pepper(environment: dict[str, str]) -> None:
    before = json.loads(tiergate("pepper", "status", "--json", env=environment).stdout)
    assert before["may_remove_old"] and before["keys_to_move"] == []
    switched = environment | {"TIERGATE_KEY_PEPPER": NEW, "TIERGATE_OLD_KEY_PEPPERS": OLD}
    found = json.loads(tiergate("pepper", "status", "--json", env=switched).stdout)
    assert not found["may_remove_old"] and [key["name"] for key in found["keys_to_move"]] == ["operator"]
    hanging = {each["what"]: each["old"] for each in found["things"] if each["old"]}
    assert hanging == {"API keys": 1, "audit log": 1}
    shown = tiergate("pepper", "status", env=switched).stdout
    assert "operator" in shown and shown.endswith("old peppers may not be removed\n")


def test_settling_seals_the_audit_log_anew_and_says_so_in_it(environment: dict[str, str]) -> None:
    switched = environment | {"TIERGATE_KEY_PEPPER": NEW, "TIERGATE_OLD_KEY_PEPPERS": OLD}
    settled = tiergate("pepper", "settle", "--json", env=switched)
    assert settled.returncode == 0 and json.loads(settled.stdout) == {"moved": {}, "unreadable": {}}
    after = environment | {"TIERGATE_KEY_PEPPER": NEW}
    assert tiergate("audit", "verify", env=after).stdout.startswith("2 rows hold")


def test_a_pepper_that_is_only_announced_is_not_settled_to(environment: dict[str, str]) -> None:
    announced = environment | {"TIERGATE_NEXT_KEY_PEPPER": NEW}
    assert "TIERGATE_NEXT_KEY_PEPPER" in refusal("pepper", "settle", env=announced)
    assert "TIERGATE_NEXT_KEY_PEPPER" in refusal(
        "pepper", "status", env=environment | {"TIERGATE_NEXT_KEY_PEPPER": "x"}
    )
