"""The proof in its short form: each process is killed and frozen once, and ClickHouse cut off."""

from pathlib import Path

import pytest

from benchmarks.exactly_once.__main__ import measure

SEED = 12


@pytest.mark.long
@pytest.mark.timeout(600)
async def test_every_finished_request_has_exactly_one_row_whatever_died(tmp_path: Path) -> None:
    result = await measure(tmp_path, num_requests=1500, num_kills=16, seed=SEED, num_clients=12)
    assert result["differences"] == 0, result
    assert result["tokens"] == result["tokens_in_rows"]
