"""The alert rules: promtool takes them, each is seen to fire in its tests, and the manual says what to do."""

import subprocess
from typing import Any

import yaml

from tests.support.prometheus import ALERTS, DEPLOY, binary

TESTS = ALERTS.with_name("alerts.test.yml")
MANUAL = DEPLOY.parent / "docs" / "operations.md"


def rules() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]


def promtool(*arguments: str) -> str:
    ended = subprocess.run(
        [binary("promtool"), *arguments], cwd=ALERTS.parent, capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout + ended.stderr


def test_promtool_takes_the_rules_and_the_configuration() -> None:
    assert f"{len(rules())} rules found" in promtool("check", "rules", ALERTS.name)
    promtool("check", "config", "--syntax-only", "prometheus.yml")


def test_each_alert_fires_when_it_should_and_none_on_a_healthy_platform() -> None:
    assert "SUCCESS" in promtool("test", "rules", TESTS.name)
    cases = [case for test in yaml.safe_load(TESTS.read_text())["tests"] for case in test.get("alert_rule_test", [])]
    assert {case["alertname"] for case in cases if case["exp_alerts"]} == {rule["alert"] for rule in rules()}


def test_the_manual_says_of_each_alert_what_it_means() -> None:
    manual = MANUAL.read_text()
    assert [rule["alert"] for rule in rules() if f"`{rule['alert']}`" not in manual] == []
