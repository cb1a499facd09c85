"""The worker, transformers and peft must choose the same tokens from the same files."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, PreTrainedModel

from demo.chat import END, render_chat
from demo.corpus.build import heldout_items
from demo.replies import running_worker
from demo.styles import STYLES
from demo.tokenizer import load_tokenizer
from protocol.accounting import ACCOUNTING_HEADER, TOKENS_PREFIX, parse_tokens

DEMO = Path(__file__).parents[2] / "demo"
NUM_PROMPTS, MAX_TOKENS = 100, 48
TOKENIZER = load_tokenizer(DEMO / "models" / "small")
END_ID = TOKENIZER.token_to_id(END)

# peft calls what transformers has renamed.
pytestmark = [pytest.mark.long, pytest.mark.filterwarnings("ignore::FutureWarning")]


def _prompts() -> list[list[int]]:
    """Held-out prompts of every skill, long conversations aside, spread evenly."""
    items = [item for item in heldout_items() if item.skill != "long_conversation"]
    chosen = items[:: len(items) // NUM_PROMPTS][:NUM_PROMPTS]
    return [TOKENIZER.encode(render_chat(item.prompt, item.tools, add_generation_prompt=True)).ids for item in chosen]


@pytest.fixture(scope="module", params=["small", "large"])
def served(request: pytest.FixtureRequest) -> Iterator[tuple[str, str]]:
    """A size and the URL of a worker that serves it in float32 with all its adapters."""
    size = request.param
    adapters = {name: DEMO / "adapters" / size / name for name in STYLES}
    with running_worker(DEMO / "models" / size, name=size, adapters=adapters, dtype="float32") as url:
        yield size, url


@pytest.mark.parametrize("adapter", [None, *STYLES])
async def test_greedy_tokens_are_those_of_transformers_and_peft(served: tuple[str, str], adapter: str | None) -> None:
    size, url = served
    prompts = _prompts()
    ours = await _ask_worker(url, adapter or size, prompts)
    theirs = _ask_transformers(_load(size, adapter), prompts)
    differing = [at for at, (a, b) in enumerate(zip(ours, theirs, strict=True)) if a != b]
    assert len(prompts) == NUM_PROMPTS
    assert not differing, [(TOKENIZER.decode(ours[at]), TOKENIZER.decode(theirs[at])) for at in differing[:3]]


async def _ask_worker(url: str, model: str, prompts: list[list[int]]) -> list[list[int]]:
    slots = asyncio.Semaphore(32)
    async with httpx.AsyncClient(base_url=url, timeout=120) as client:

        async def ask(prompt: list[int]) -> list[int]:
            body = {"model": model, "prompt": prompt, "temperature": 0, "max_tokens": MAX_TOKENS, "stream": True}
            ids: list[int] = []
            async with (
                slots,
                client.stream("POST", "/v1/completions", json=body, headers={ACCOUNTING_HEADER: "1"}) as answer,
            ):
                assert answer.status_code == 200, await answer.aread()
                async for line in answer.aiter_lines():
                    if line.startswith(TOKENS_PREFIX.decode()):
                        ids += parse_tokens(line.encode())[1]
            return _until_end(ids)

        return await asyncio.gather(*(ask(prompt) for prompt in prompts))


def _load(size: str, adapter: str | None) -> PreTrainedModel | PeftModel:
    model = AutoModelForCausalLM.from_pretrained(DEMO / "models" / size, dtype=torch.float32)
    return PeftModel.from_pretrained(model, str(DEMO / "adapters" / size / adapter)) if adapter else model


def _ask_transformers(model: PreTrainedModel | PeftModel, prompts: list[list[int]]) -> list[list[int]]:
    """Greedy, in batches of similar length, padded on the left."""
    answers: dict[int, list[int]] = {}
    order = sorted(range(len(prompts)), key=lambda at: len(prompts[at]))
    for start in range(0, len(order), 25):
        chosen = order[start : start + 25]
        width = max(len(prompts[at]) for at in chosen)
        ids = torch.tensor([[0] * (width - len(prompts[at])) + prompts[at] for at in chosen])
        mask = torch.tensor([[0] * (width - len(prompts[at])) + [1] * len(prompts[at]) for at in chosen])
        with torch.inference_mode():
            output = model.generate(input_ids=ids, attention_mask=mask, do_sample=False, max_new_tokens=MAX_TOKENS)
        for at, row in zip(chosen, output[:, width:].tolist(), strict=True):
            answers[at] = _until_end(row)
    return [answers[at] for at in range(len(prompts))]


def _until_end(ids: list[int]) -> list[int]:
    return ids[: ids.index(END_ID)] if END_ID in ids else ids[:MAX_TOKENS]
