"""An engine whose process may use little more memory than it already has. It prints the result of a long prompt, then
of a short one. This is a process of its own, since the limit cannot be lifted.

python -m tests.support.out_of_memory CHECKPOINT
"""

import asyncio
import re
import resource
import sys
from pathlib import Path

from tests.support.engine_requests import collect, make_request
from worker.engine.engine import Engine
from worker.engine.errors import StepFailed
from worker.engine.settings import EngineSettings

_MORE_BYTES = 200 << 20


async def main(checkpoint: Path) -> None:
    engine = Engine.load(EngineSettings(model_path=checkpoint, num_threads=2, kv_memory_bytes=1 << 24))
    engine.start()
    await collect(engine, make_request([1] * 20, max_tokens=1))
    limit_memory()
    for length in (2000, 20):
        try:
            print(len(await collect(engine, make_request([2] * length, max_tokens=3))))
        except StepFailed as error:
            print("failed:", error)
    await engine.stop()


def limit_memory() -> None:
    match = re.search(r"VmSize:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert match is not None
    limit = int(match[1]) * 1024 + _MORE_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
