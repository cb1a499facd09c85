"""64 adapters in a store that speaks S3, 8 slots, 200 requests: every answer is peft's."""

import asyncio
import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from transformers import LlamaForCausalLM

from protocol.artifacts import artifact_name
from tests.support.object_stores import running_s3
from tests.support.peft_adapters import count_equal, save_by_peft
from tests.support.running_worker import RunningWorker, running_worker
from tests.support.stored_adapters import store_adapter

# peft 0.21 still reads a property that transformers 5 deprecates.
pytestmark = pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")
NUM_TOKENS = 5


@pytest.mark.long
def test_64_adapters_from_s3_over_8_slots_answer_200_requests_as_peft_does(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = LlamaForCausalLM.from_pretrained(checkpoint)
    saved = [save_by_peft(base, tmp_path, i) for i in range(64)]
    rng = random.Random(2)
    with running_s3() as s3:
        for name, value in s3.environment.items():
            monkeypatch.setenv(name, value)
        url = f"s3://{s3.make_bucket()}/adapters"
        folders = {artifact_name(asyncio.run(store_adapter(url, folder))): folder for folder in saved}
        names = [*folders] + [rng.choice([*folders]) for _ in range(116)] + [None] * 20
        rng.shuffle(names)
        prompts = [[rng.randrange(380) for _ in range(rng.randint(2, 30))] for _ in names]
        options = {"artifacts_url": url, "artifacts_dir": tmp_path / "cache", "adapter_slots": 8, "adapter_host_mb": 1}
        with running_worker(checkpoint, dtype="float32", **options) as worker, ThreadPoolExecutor(64) as pool:
            answers = list(pool.map(lambda name, prompt: ask(worker, name, prompt), names, prompts))
            assert len(worker.load()["resident_adapters"]) == 8
            decode = worker.replica.bundle.tokenizer.decode
    answered = list(zip(names, prompts, answers, strict=True))
    assert count_equal(checkpoint, folders, answered, num_tokens=NUM_TOKENS, shown=decode) >= 190


def ask(worker: RunningWorker, name: str | None, prompt: list[int]) -> str:
    body = {"model": name or "tiny", "prompt": prompt, "max_tokens": NUM_TOKENS, "temperature": 0, "ignore_eos": True}
    with worker.client() as client:
        reply = client.post("/v1/completions", json=body)
    assert reply.status_code == 200, reply.text
    text: str = reply.json()["choices"][0]["text"]
    return text
