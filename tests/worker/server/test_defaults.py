import json
from pathlib import Path

import pytest

from worker.server.defaults import SamplingDefaults, read_defaults


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ({}, SamplingDefaults()),
        ({"temperature": 0.6, "top_p": None, "eos_token_id": [1]}, SamplingDefaults(temperature=0.6)),
        ({"do_sample": False, "temperature": 0.6}, SamplingDefaults(temperature=0.0)),
        ({"do_sample": True, "top_k": 20, "max_new_tokens": 9}, SamplingDefaults(top_k=20, max_new_tokens=9)),
    ],
)
def test_the_checkpoint_says_how_it_wants_to_be_sampled(
    tmp_path: Path, said: dict[str, object], expected: SamplingDefaults
) -> None:
    (tmp_path / "generation_config.json").write_text(json.dumps(said))
    assert read_defaults(tmp_path) == expected


def test_without_the_file_openai_s_defaults_hold(tmp_path: Path) -> None:
    assert read_defaults(tmp_path) == SamplingDefaults()
