"""What loading takes in memory."""

import subprocess
import sys
from pathlib import Path

import torch

from tests.support.checkpoints import make_tiny_checkpoint

_LOAD = """
import sys
from pathlib import Path

import torch

from worker.model.config import read_config
from worker.model.llama import load_llama

def peak_bytes():
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM:")) * 1024

folder, dtype = Path(sys.argv[1]), getattr(torch, sys.argv[2])
load_llama(Path(sys.argv[3]), read_config(Path(sys.argv[3])), dtype)
before = peak_bytes()
model = load_llama(folder, read_config(folder), dtype)
print(peak_bytes() - before)
"""


def test_loading_holds_one_copy_of_the_weights(tmp_path: Path) -> None:
    """The file's pages in between included. A first, tiny model pays for what the libraries set up."""
    tiny = make_tiny_checkpoint(tmp_path / "tiny", dtype=torch.bfloat16)
    folder = make_tiny_checkpoint(
        tmp_path / "model",
        hidden_size=768,
        intermediate_size=2048,
        num_layers=12,
        num_heads=12,
        num_kv_heads=4,
        dtype=torch.bfloat16,
    )
    num_bytes = (folder / "model.safetensors").stat().st_size
    command = [sys.executable, "-c", _LOAD, str(folder), "bfloat16", str(tiny)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    # A layer is a twelfth; while it is rearranged there are two of it, and the file's pages.
    # The kernels' own copy of one layer and the libraries come on top; a second copy of all would make it 2.
    assert int(done.stdout) < 1.8 * num_bytes
