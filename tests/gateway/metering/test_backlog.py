from contextlib import closing
from pathlib import Path

from gateway.metering.journal import Journal, encode_event
from tests.support.events import make_event


def test_estimating_the_backlog_costs_the_same_for_one_event_and_for_thousands(tmp_path: Path) -> None:
    with closing(Journal.open(tmp_path)) as journal:
        journal.write(closed=[encode_event(make_event("0"))])
        few = _num_steps(journal)
        journal.write(closed=[encode_event(make_event(str(number))) for number in range(1, 3000)])
        assert _num_steps(journal) == few
        assert journal.estimate_closed() == journal.count_closed() == 3000


def _num_steps(journal: Journal) -> int:
    """Instructions of SQLite's machine."""
    steps: list[None] = []
    journal._connection.set_progress_handler(lambda: steps.append(None), 1)
    journal.estimate_closed()
    journal._connection.set_progress_handler(None, 1)
    return len(steps)
