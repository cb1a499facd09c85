"""What adapters took of a worker's memory is the system's again when they are gone, whatever came and went before."""

import asyncio
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Event

import httpx
import psutil

from protocol.artifacts import artifact_name
from tests.support.checkpoints import make_tiny_adapter, make_tiny_checkpoint
from tests.support.peft_adapters import MODULES
from tests.support.stored_adapters import store_adapter
from tests.worker.test_main import process

NUM_NAMED, NUM_FETCHED = 8, 4
DEADLINE_S = 60


def anonymous_bytes(worker: psutil.Process) -> int:
    """Resident, without pages of files, which the system takes back by itself."""
    lines = Path(f"/proc/{worker.pid}/smaps_rollup").read_text().splitlines()
    [found] = [line for line in lines if line.startswith("Anonymous:")]
    return int(found.split()[1]) << 10


def post(client: httpx.Client, path: str, **body: object) -> httpx.Response:
    reply = client.post(path, json=body)
    assert reply.status_code == 200, reply.text
    return reply


def complete(client: httpx.Client, model: str) -> str:
    reply = post(
        client, "/v1/completions", model=model, prompt="Hi there", max_tokens=8, temperature=0, ignore_eos=True
    )
    text: str = reply.json()["choices"][0]["text"]
    return text


@contextmanager
def traffic(client: httpx.Client, *models: str) -> Iterator[None]:
    """Somebody asks for each of them all the time, and is always told the same."""
    is_over = Event()

    def ask(model: str) -> None:
        expected = complete(client, model)
        while not is_over.is_set():
            assert complete(client, model) == expected

    with ThreadPoolExecutor(len(models)) as pool:
        asking: list[Future[None]] = [pool.submit(ask, model) for model in models]
        try:
            yield
        finally:
            is_over.set()
        for each in asking:
            each.result()


def come_and_go(client: httpx.Client, worker: psutil.Process, folders: list[Path], fetched: list[str]) -> int:
    """Load, use, replace, delete and load again; at the end all are deleted. The most that was resident."""
    load, unload = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"
    for number, folder in enumerate(folders):
        name, other = f"voice-{number}", folders[number - 1]
        post(client, load, lora_name=name, lora_path=str(folder))
        first = complete(client, name)
        post(client, load, lora_name=name, lora_path=str(other), load_inplace=True)
        assert complete(client, name) != first
        post(client, unload, lora_name=name)
        post(client, load, lora_name=name, lora_path=str(folder))
        assert complete(client, name) == first
    for name in fetched:
        first = complete(client, name)
        post(client, unload, lora_name=name)
        assert complete(client, name) == first
    most = anonymous_bytes(worker)
    for name in (*(f"voice-{number}" for number in range(len(folders))), *fetched):
        post(client, unload, lora_name=name)
    return most


def test_replaced_deleted_and_loaded_again_in_mid_traffic_memory_returns_to_its_level(tmp_path: Path) -> None:
    checkpoint = make_tiny_checkpoint(tmp_path / "tiny", hidden_size=256, intermediate_size=512)
    folders = [
        make_tiny_adapter(
            tmp_path / f"{seed}", checkpoint, seed=seed, rank=64, alpha=64.0, target_modules=tuple(MODULES)
        )
        for seed in range(NUM_NAMED + NUM_FETCHED)
    ]
    named, stored = folders[:NUM_NAMED], folders[NUM_NAMED:]
    fetched = [artifact_name(asyncio.run(store_adapter(str(tmp_path / "store"), each))) for each in stored]
    of_one = (folders[0] / "adapter_model.safetensors").stat().st_size
    settings = {
        "DTYPE": "float32",
        "KV_BLOCKS": "1024",
        "ARTIFACTS_URL": f"file://{tmp_path / 'store'}",
        "ARTIFACTS_DIR": str(tmp_path / "cache"),
    }
    with (
        process(checkpoint, **settings) as (running, url),
        httpx.Client(base_url=url, timeout=DEADLINE_S) as client,
    ):
        worker = psutil.Process(running.pid)
        resident = make_tiny_adapter(tmp_path / "resident", checkpoint, seed=99)
        post(client, "/v1/load_lora_adapter", lora_name="resident", lora_path=str(resident))
        with traffic(client, "tiny", "resident"):
            # What the first time takes for good: threads, their allocators' arenas, code that was never run.
            come_and_go(client, worker, named, fetched)
            level = settled(worker, within=0)
            for _ in range(2):
                most = come_and_go(client, worker, named, fetched)
        assert most - level > (NUM_NAMED + NUM_FETCHED) * of_one
        # Of 64 that came since then, not three stayed.
        assert settled(worker, within=level + 3 * of_one) <= level + 3 * of_one


def settled(worker: psutil.Process, *, within: int) -> int:
    """Its bytes once they are within that, or once they have been the least for three seconds: memory is given back
    beside the steps."""
    ends_at = time.monotonic() + DEADLINE_S
    least, since = anonymous_bytes(worker), time.monotonic()
    while time.monotonic() < min(ends_at, since + 3) and least > within:
        time.sleep(0.05)
        now = anonymous_bytes(worker)
        if now < least:
            least, since = now, time.monotonic()
    return least
