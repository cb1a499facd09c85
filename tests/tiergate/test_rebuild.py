from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest

from gateway.metering.schema import connect_migrated
from gateway.metering.store import UsageStore
from tests.support.clickhouse import running_clickhouse
from tests.support.events import make_event
from tiergate.main import run

REBUILD = ["usage", "rebuild", "--from", "2026-03-01", "--to", "2026-04-01"]


def test_usage_rebuild_makes_rollups_from_what_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TIERGATE_KEY_PEPPER", "p" * 16)
    assert run(REBUILD) == 2
    assert "TIERGATE_CLICKHOUSE_URL" in capsys.readouterr().err
    with running_clickhouse(tmp_path / "clickhouse") as clickhouse, closing(UsageStore(clickhouse.url)) as store:
        monkeypatch.setenv("TIERGATE_CLICKHOUSE_URL", clickhouse.url)
        store.insert([make_event(f"r{day}", timestamp=datetime(2026, 3, day, 5, tzinfo=UTC)) for day in (2, 3, 3)])
        assert run(REBUILD) == 0
        assert capsys.readouterr().out == "2 hours made again\n"
        with connect_migrated(clickhouse.url) as client:
            assert client.query("SELECT sum(requests) FROM usage_days FINAL").result_rows == [(2,)]
