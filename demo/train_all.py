"""`python -m demo.train_all`: corpus, tokenizer, models and adapters from nothing, or from where it stopped."""

import argparse
import subprocess
import sys
import time
from pathlib import Path

from demo.export import write_configs
from demo.model import SHAPES
from demo.styles import STYLES
from demo.train import DEMO, WORK, prepare_tokenizer


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m demo.train_all", description=__doc__)
    parser.add_argument("--fresh", action="store_true", help="forget earlier checkpoints and start from nothing")
    arguments = parser.parse_args()
    started_at = time.monotonic()
    WORK.mkdir(parents=True, exist_ok=True)
    if arguments.fresh:
        for pattern in ("*.pt", "*.npz", "*.done", "tokenizer/*"):
            for leftover in WORK.glob(pattern):
                leftover.unlink()
    prepare_tokenizer()
    for size, shape in SHAPES.items():
        write_configs(shape, DEMO / "models" / size)
    # Each model keeps one core busy; side by side they need as long as the large one alone.
    _run_together([["demo.train", size] for size in SHAPES])
    for style in STYLES:
        _run_together([["demo.adapt", size, style] for size in SHAPES if not _is_done(size, style)])
        for size in SHAPES:
            _mark(size, style).touch()
    print(f"all models and adapters are trained; {(time.monotonic() - started_at) / 60:.0f} minutes")


def _mark(size: str, style: str) -> Path:
    return WORK / f"{size}-{style}.done"


def _is_done(size: str, style: str) -> bool:
    """An adapter stands as long as its base was not trained any further."""
    mark, base = _mark(size, style), WORK / f"{size}.pt"
    return mark.exists() and mark.stat().st_mtime >= base.stat().st_mtime


def _run_together(modules: list[list[str]]) -> None:
    """Run `python -m ...` for each, all at once; the first failure ends the others and is raised."""
    processes = [subprocess.Popen([sys.executable, "-m", *module]) for module in modules]
    try:
        while any(process.poll() is None for process in processes):
            for process, module in zip(processes, modules, strict=True):
                if process.poll():
                    raise SystemExit(f"python -m {' '.join(module)} failed with status {process.returncode}")
            time.sleep(0.5)
    finally:
        for process in processes:
            process.terminate()
            process.wait()
    for process, module in zip(processes, modules, strict=True):
        if process.returncode:
            raise SystemExit(f"python -m {' '.join(module)} failed with status {process.returncode}")


if __name__ == "__main__":
    main()
