"""`python -m demo.train_all`: make corpus, tokenizer, models and adapters, from scratch or from where it stopped."""

import argparse
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor, as_completed

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
    # Two trainings at a time, since each uses one core.
    with ThreadPoolExecutor(len(SHAPES)) as pool:
        bases = {pool.submit(_run, "demo.train", size): size for size in SHAPES}
        adapters = []
        for base in as_completed(bases):
            base.result()
            adapters += [pool.submit(_adapt, bases[base], style) for style in STYLES]
        for adapter in adapters:
            adapter.result()
    print(f"all models and adapters are trained; {(time.monotonic() - started_at) / 60:.0f} minutes")


def _adapt(size: str, style: str) -> None:
    """Train an adapter, unless it has been trained since its base model was last saved."""
    mark = WORK / f"{size}-{style}.done"
    if not mark.exists() or mark.stat().st_mtime < (WORK / f"{size}.pt").stat().st_mtime:
        _run("demo.adapt", size, style)
        mark.touch()


def _run(*module: str) -> None:
    if status := subprocess.run([sys.executable, "-m", *module], check=False).returncode:
        raise SystemExit(f"python -m {' '.join(module)} failed with status {status}")


if __name__ == "__main__":
    main()
