"""`tiergate dead-letters` without Kafka: what was set aside in the outboxes."""

import json
from contextlib import closing
from pathlib import Path

import pytest

from gateway.metering.folders import create_folder
from gateway.metering.journal import Journal, encode_event
from tests.support.events import make_event
from tiergate.main import run


@pytest.fixture
def data_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TIERGATE_KEY_PEPPER", "p" * 16)
    monkeypatch.setenv("TIERGATE_DATA_DIR", str(tmp_path))
    folder = create_folder(tmp_path, "one")
    with closing(Journal.open(folder.path)) as journal:
        journal.write((), (), [encode_event(make_event("r1"))])
        journal.refuse(1, "future: timestamp is 2099")
    folder.release()
    return tmp_path


def test_what_was_set_aside_is_listed_with_its_reason(data_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["dead-letters", "list"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["reason"] == "future: timestamp is 2099"
    assert json.loads(shown["event"])["request_id"] == "r1"


def test_replayed_events_wait_to_be_shipped_again(data_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["dead-letters", "replay"]) == 0
    assert capsys.readouterr().out == "1 events are on their way again\n"
    with closing(Journal.open(data_dir / "outbox" / "one")) as journal:
        assert [closed.event.request_id for closed in journal.read_closed(10)] == ["r1"]
        assert journal.count_refused() == 0
