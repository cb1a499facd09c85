"""The layers in one call, which steps without adapters take, against the layers one by one, which others take."""

from pathlib import Path
from typing import Any

import pytest
import torch

from kernels.native import library
from tests.tiny import make_tiny_adapter, make_tiny_checkpoint
from tests.worker.compute import TinyRunner
from tests.worker.model.architectures import ARCHITECTURES

pytestmark = pytest.mark.skipif(library() is None, reason="this machine has no AVX-512 with bfloat16, or no compiler")
PROMPT = [(7 * i + 5) % 380 for i in range(70)]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("config", ARCHITECTURES.values(), ids=ARCHITECTURES.keys())
def test_a_neighbours_adapter_changes_no_bit(tmp_path: Path, config: dict[str, Any], dtype: str) -> None:
    checkpoint = make_tiny_checkpoint(tmp_path / "model", **config)
    runner = TinyRunner(checkpoint, dtype=dtype, adapters={"one": make_tiny_adapter(tmp_path / "one", checkpoint)})
    for start, end in ((0, 40), (40, 69), (69, 70)):
        alone = runner.extend("alone", PROMPT[:end])
        logits = runner.extend_all({"with": PROMPT[:end], "own": PROMPT[:end]}, adapters={"own": "one"})
        assert torch.equal(logits[0], alone), (start, end)
        assert not torch.equal(logits[1], alone)
