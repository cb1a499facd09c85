"""Log-probabilities in OpenAI's two shapes, against transformers, and next to the text that they belong to."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
import torch
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from tests.support.running_worker import RunningWorker, running_worker
from tests.support.scripted import make_scripted_checkpoint

HI: Any = [{"role": "user", "content": "Hi"}]
SCRIPT = ["Hello", " world", "👩", " STOP", " it"]
TEXT = "".join(SCRIPT)


@pytest.fixture(scope="module")
def scripted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[openai.OpenAI]:
    """Says TEXT, in which a character is made of several tokens."""
    folder = make_scripted_checkpoint(tmp_path_factory.mktemp("scripted") / "m", SCRIPT)
    with (
        running_worker(folder) as running,
        openai.OpenAI(base_url=running.base_url, api_key="none", max_retries=0) as client,
    ):
        yield client


def reference(checkpoint: Path, ids: list[int]) -> torch.Tensor:
    """[len(ids) - 1, vocab]: log-probabilities of what follows each token."""
    model = LlamaForCausalLM.from_pretrained(checkpoint)
    with torch.no_grad():
        return torch.log_softmax(model(torch.tensor([ids])).logits[0, :-1].double(), -1)


def test_they_are_the_models_own_whatever_changes_the_choice(
    client: openai.OpenAI, worker: RunningWorker, checkpoint: Path
) -> None:
    prompt = [5, 17, 99, 200, 42, 7]
    made = client.completions.create(
        model="tiny",
        prompt=prompt,
        max_tokens=20,
        temperature=0.5,
        seed=3,
        top_p=0.9,
        frequency_penalty=1.0,
        logprobs=3,
        logit_bias={"70": 5},
        extra_body={"ignore_eos": True, "repetition_penalty": 1.3, "min_tokens": 2},
    )
    found = made.choices[0].logprobs
    assert found is not None and found.tokens and found.token_logprobs and found.top_logprobs and found.text_offset
    tokenizer = PreTrainedTokenizerFast.from_pretrained(checkpoint)
    spelling = {worker.replica.bundle.tokenizer.piece(i): i for i in range(len(tokenizer))}
    ids = [spelling[to_bytes(token)] for token in found.tokens]
    assert tokenizer.decode(ids) == made.choices[0].text
    expected = reference(checkpoint, prompt + ids)[len(prompt) - 1 :]
    own = expected[torch.arange(20), torch.tensor(ids)]
    torch.testing.assert_close(torch.tensor(found.token_logprobs, dtype=torch.float64), own, atol=1e-4, rtol=0)
    for row, (token, top) in enumerate(zip(found.tokens, found.top_logprobs, strict=True)):
        likeliest = expected[row].topk(3)
        likely = dict(zip(likeliest.indices.tolist(), likeliest.values.tolist(), strict=True))
        likely[spelling[to_bytes(token)]] = own[row].item()
        got = {spelling[to_bytes(each)]: logprob for each, logprob in top.items()}
        assert got == pytest.approx(likely, abs=1e-4)


def to_bytes(token: str) -> bytes:
    if token.startswith("bytes:"):
        return bytes.fromhex(token.removeprefix("bytes:").replace("\\x", ""))
    return token.encode()


@pytest.mark.parametrize("stop", [None, "STOP", "👩", "world", " it"])
def test_the_bytes_of_a_chats_tokens_are_its_text(scripted: openai.OpenAI, stop: str | None) -> None:
    fields: dict[str, Any] = {"model": "tiny", "messages": HI, "temperature": 0, "logprobs": True, "stop": stop}
    made = scripted.chat.completions.create(**fields, top_logprobs=2)
    whole = made.choices[0]
    assert whole.logprobs is not None and whole.logprobs.content is not None
    text = whole.message.content or ""
    spelled = b"".join(bytes(token.bytes or ()) for token in whole.logprobs.content)
    # The tokens of the stop string, or the one that ends the answer, are listed as they are counted.
    assert spelled.removesuffix(b"<|im_end|>") == (text + stop if stop else TEXT).encode()
    assert made.usage is not None and len(whole.logprobs.content) == made.usage.completion_tokens
    assert all(len(token.top_logprobs) == 2 for token in whole.logprobs.content)
    assert all(token.top_logprobs[0].logprob == token.logprob for token in whole.logprobs.content)
    streamed, texts = [], []
    for chunk in scripted.chat.completions.create(**fields, top_logprobs=2, stream=True):
        texts.append(chunk.choices[0].delta.content or "")
        found = chunk.choices[0].logprobs
        streamed += (found.content or []) if found is not None else []
        if "".join(texts) != text:
            assert "".join(texts).encode().startswith(b"".join(bytes(token.bytes or ()) for token in streamed[:-1]))
    assert "".join(texts) == text
    assert "".join(texts) == text
    assert [token.model_dump() for token in streamed] == [token.model_dump() for token in whole.logprobs.content]


def test_a_part_of_a_character_is_shown_by_its_bytes(scripted: openai.OpenAI) -> None:
    chat = scripted.chat.completions.create(model="tiny", messages=HI, temperature=0, logprobs=True).choices[0]
    assert chat.logprobs is not None and chat.logprobs.content is not None
    parts = [token for token in chat.logprobs.content if token.token.startswith("\\x")]
    assert b"".join(bytes(token.bytes or ()) for token in parts) == "👩".encode()
    assert len(parts) > 1
    assert "".join(token.token for token in parts) == "".join(f"\\x{byte:02x}" for byte in "👩".encode())
    assert all(token.top_logprobs == [] for token in chat.logprobs.content)


def test_offsets_count_characters_and_go_on_through_a_stream(scripted: openai.OpenAI) -> None:
    prompt = "<|im_start|>assistant\n"
    fields: dict[str, Any] = {"model": "tiny", "prompt": prompt, "temperature": 0, "logprobs": 0, "max_tokens": 30}
    whole = scripted.completions.create(**fields).choices[0]
    assert whole.logprobs is not None and whole.logprobs.tokens and whole.logprobs.text_offset
    assert whole.text == TEXT
    spelled = b""
    for token, offset in zip(whole.logprobs.tokens, whole.logprobs.text_offset, strict=True):
        assert len(spelled.decode(errors="ignore")) == offset
        spelled += to_bytes(token)
    streamed = [chunk.choices[0].logprobs for chunk in scripted.completions.create(**fields, stream=True)]
    offsets = [offset for each in streamed if each is not None for offset in each.text_offset or ()]
    assert offsets == whole.logprobs.text_offset
    assert whole.logprobs.top_logprobs is not None and all(len(top or {}) == 1 for top in whole.logprobs.top_logprobs)


@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_is_scored_without_generating_anything(
    client: openai.OpenAI, worker: RunningWorker, checkpoint: Path, stream: bool
) -> None:
    prompt = "The quick brown 👩 fox jumps over the lazy dog. " * 12
    ids = worker.replica.bundle.encode_text(prompt)
    expected = reference(checkpoint, ids)[torch.arange(len(ids) - 1), torch.tensor(ids[1:])]
    # The second time its blocks could be in the cache.
    for _ in range(2):
        fields: dict[str, Any] = {"model": "tiny", "prompt": prompt, "max_tokens": 0, "echo": True, "logprobs": 1}
        if stream:
            chunks = list(client.completions.create(**fields, stream=True, stream_options={"include_usage": True}))
            choice, usage = chunks[0].choices[0], chunks[-1].usage
        else:
            made = client.completions.create(**fields)
            choice, usage = made.choices[0], made.usage
            assert choice.finish_reason == "length"
        assert choice.text == prompt
        assert usage is not None and (usage.prompt_tokens, usage.completion_tokens) == (len(ids), 0)
        found = choice.logprobs
        assert found is not None and found.tokens and found.token_logprobs and found.top_logprobs
        assert b"".join(map(to_bytes, found.tokens)).decode() == prompt
        assert found.token_logprobs[0] is None and found.top_logprobs[0] is None
        scored = torch.tensor(found.token_logprobs[1:], dtype=torch.float64)
        torch.testing.assert_close(scored, expected, atol=1e-4, rtol=0)


def test_an_echo_stands_before_each_answer(client: openai.OpenAI) -> None:
    fields: dict[str, Any] = {"model": "tiny", "temperature": 1, "seed": 1, "max_tokens": 5, "n": 2}
    prompts = ["Paris", "The lazy dog"]
    plain = client.completions.create(prompt=prompts, **fields)
    echoed = client.completions.create(prompt=prompts, echo=True, logprobs=1, **fields)
    for i, (answer, whole) in enumerate(zip(plain.choices, echoed.choices, strict=True)):
        assert whole.text == prompts[i // 2] + answer.text
        assert whole.logprobs is not None and whole.logprobs.text_offset and whole.logprobs.token_logprobs
        assert whole.logprobs.text_offset[0] == 0 and whole.logprobs.token_logprobs[0] is None
        assert sum(each is None for each in whole.logprobs.token_logprobs) == 1
    ids = client.completions.create(prompt=[5, 17, 99], echo=True, max_tokens=1, model="tiny", temperature=0)
    assert ids.choices[0].finish_reason


def test_who_does_not_ask_is_told_nothing(client: openai.OpenAI) -> None:
    made = client.completions.create(model="tiny", prompt="Hi", max_tokens=2)
    assert made.choices[0].logprobs is None
    chat = client.chat.completions.create(model="tiny", messages=HI, max_tokens=2, logprobs=False)
    assert chat.choices[0].logprobs is None
