"""What a worker with a key samples is told from free text by its key alone, and from the text alone."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.kernels.hopper import on_hopper
from tests.support.cli import refusal, tiergate
from tests.support.engine_requests import collect, make_request
from text.tokenizer import Tokenizer
from text.watermark import Watermark
from worker.engine.device import DeviceError
from worker.engine.engine import Engine
from worker.engine.settings import EngineSettings

MODEL = Path(__file__).parents[3] / "demo" / "models" / "small"
KEY, OTHER = b"0123456789abcdef0123456789abcdef", b"another key of the very same size"
GAMMA = 0.25
MARK = Watermark(KEY, gamma=GAMMA, delta=2.0)
PROMPT = "The old lighthouse keeper"


@asynccontextmanager
async def engine_of(watermark: Watermark | None) -> AsyncIterator[Engine]:
    engine = Engine.load(EngineSettings(model_path=MODEL, num_threads=1, device="cpu", watermark=watermark))
    engine.start()
    yield engine
    await engine.stop()


async def texts(watermark: Watermark | None) -> list[list[int]]:
    """Four sampled answers; hot, since this small model is sure of nearly every word, and sure words carry no mark."""
    tokenizer = Tokenizer.from_folder(MODEL)
    prompt = tokenizer.encode(PROMPT, add_special_tokens=False)
    wanted: dict[str, Any] = {
        "max_tokens": 250,
        "temperature": 2.0,
        "logit_bias": dict.fromkeys(tokenizer.special_token_ids, -100.0),
    }
    async with engine_of(watermark) as engine:
        return [await collect(engine, make_request(prompt, seed=seed, **wanted)) for seed in range(4)]


def test_a_share_of_all_tokens_is_green_and_another_one_after_each_token_and_under_each_key() -> None:
    ids = np.arange(50_000, dtype=np.uint64)
    lists = [mark.is_green(previous, ids) for mark in (MARK, Watermark(OTHER, gamma=GAMMA)) for previous in (0, 1, 77)]
    for green in lists:
        assert abs(float(green.mean()) - GAMMA) < 0.01
    for i, one in enumerate(lists):
        for other in lists[:i]:
            assert abs(float((one & other).mean()) - GAMMA**2) < 0.01


async def test_sampled_text_is_told_by_its_key_and_free_text_is_not() -> None:
    marked, free = await texts(MARK), await texts(None)
    assert all(MARK.detect(each).z > 4 for each in marked), [MARK.detect(each) for each in marked]
    assert all(MARK.detect(each).z < 4 for each in free), [MARK.detect(each) for each in free]
    other = Watermark(OTHER, gamma=GAMMA)
    assert all(other.detect(each).z < 4 for each in marked)
    # A text that repeats itself proves nothing twice.
    assert MARK.detect(free[0][:40] * 30).z < 4


async def test_the_likeliest_tokens_stay_what_they_are() -> None:
    prompt = Tokenizer.from_folder(MODEL).encode(PROMPT, add_special_tokens=False)
    said = []
    for watermark in (MARK, None):
        async with engine_of(watermark) as engine:
            said.append(await collect(engine, make_request(prompt, max_tokens=40)))
    assert said[0] == said[1]


async def test_the_command_tells_it_from_the_text_alone(tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_folder(MODEL)
    key = tmp_path / "key"
    key.write_bytes(KEY + b"\n")
    options = ["--key-file", str(key), "--model", str(MODEL), "--json"]
    for name, watermark in (("marked", MARK), ("free", None)):
        file = tmp_path / f"{name}.txt"
        file.write_text("\n".join(map(tokenizer.decode, await texts(watermark))))
        ended = tiergate("watermark", "detect", str(file), *options)
        found = json.loads(ended.stdout)
        assert (found["is_watermarked"], ended.returncode) == ((True, 0) if watermark else (False, 1)), found
        assert (found["z"] > 4) is found["is_watermarked"]
    key.write_bytes(b"short")
    assert "at least 16 bytes" in refusal("watermark", "detect", str(file), *options)
    started = ("worker", "--model", str(MODEL), "--port", "0", "--watermark-key-file", str(key))
    assert "--watermark-key-file" in refusal(*started)


def test_a_gpu_refuses_it() -> None:
    with on_hopper(), pytest.raises(DeviceError, match="--watermark-key-file"):
        Engine.load(EngineSettings(model_path=MODEL, watermark=MARK))
