"""Figures that the documentation promises are those of the code."""

from pathlib import Path

import pytest

from gateway.domain.keys.keyring import STALE_S
from gateway.http.parsing import MAX_FIELDS, MAX_HEAD_BYTES
from gateway.settings import GatewaySettings
from protocol.accounting import TELL_EVERY_S

DOCS = Path(__file__).parents[2] / "docs"
REDIS_DEADLINE_MS = GatewaySettings.model_fields["redis_deadline_ms"].default


@pytest.mark.parametrize(
    ("page", "promise"),
    [
        ("configuration.md", f"| `TIERGATE_REDIS_DEADLINE_MS` | {REDIS_DEADLINE_MS} |"),
        ("limits.md", f"A call has `TIERGATE_REDIS_DEADLINE_MS` ({REDIS_DEADLINE_MS}) from the moment"),
        ("configuration.md", f"at most {MAX_HEAD_BYTES / 1024:g} KiB and {MAX_FIELDS} fields (431)"),
        ("configuration.md", f"keep working for {STALE_S / 60:g} minutes while the database is away"),
        ("limits.md", f"known keys keep working for {STALE_S / 60:g} minutes (`STALE_S`)"),
        ("adr/0002-accounting-in-sse-comments.md", f"the ids every {TELL_EVERY_S * 1000:g} ms while it is generated"),
    ],
)
def test_a_promised_figure_is_the_one_in_the_code(page: str, promise: str) -> None:
    assert promise in " ".join((DOCS / page).read_text().split())
