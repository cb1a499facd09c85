"""`POST /v1/embeddings` over a real socket, against what transformers computes."""

import base64
import json
from array import array
from collections.abc import Iterator
from pathlib import Path

import httpx
import openai
import pytest
import torch
from transformers import AutoModel

from protocol.accounting import ACCOUNTING_HEADER
from tests.support.running_worker import RunningWorker, running_worker
from tests.worker.server.test_bad_input import assert_error

TEXTS = ["The quick brown fox", "Grüße aus Köln", "日本語のテキスト", "x" * 700]


@pytest.fixture(scope="module", params=["last", "mean"])
def serving(request: pytest.FixtureRequest, checkpoint: Path, adapter: Path) -> Iterator[tuple[str, RunningWorker]]:
    options = {"pooling": request.param, "kv_blocks": 512, "max_batched_tokens": 64, "adapters": {"pirate": adapter}}
    with running_worker(checkpoint, **options) as running:
        yield request.param, running


def tokenize(worker: RunningWorker, text: str) -> list[int]:
    with worker.client() as client:
        return client.post("/tokenize", json={"prompt": text}).json()["tokens"]  # type: ignore[no-any-return]


def expected_vectors(checkpoint: Path, prompts: list[list[int]], pooling: str) -> list[torch.Tensor]:
    model = AutoModel.from_pretrained(checkpoint)
    vectors = []
    with torch.inference_mode():
        for prompt in prompts:
            states = model(torch.tensor([prompt])).last_hidden_state[0]
            vector = states[-1] if pooling == "last" else states.mean(dim=0)
            vectors.append(vector / vector.norm())
    return vectors


def test_the_official_client_gets_what_transformers_computes(
    serving: tuple[str, RunningWorker], checkpoint: Path
) -> None:
    pooling, worker = serving
    prompts = [tokenize(worker, text) for text in TEXTS]
    expected = expected_vectors(checkpoint, prompts, pooling)
    with openai.OpenAI(base_url=worker.base_url, api_key="none", max_retries=0) as client:
        for given in (TEXTS, prompts):
            answer = client.embeddings.create(model="tiny", input=given)  # type: ignore[arg-type]
            assert [each.index for each in answer.data] == [0, 1, 2, 3]
            assert answer.usage.prompt_tokens == answer.usage.total_tokens == sum(map(len, prompts))
            for each, vector in zip(answer.data, expected, strict=True):
                torch.testing.assert_close(torch.tensor(each.embedding), vector, atol=1e-5, rtol=0)
        for one in (TEXTS[1], prompts[1]):
            (each,) = client.embeddings.create(model="tiny", input=one, encoding_format="float").data
            torch.testing.assert_close(torch.tensor(each.embedding), expected[1], atol=1e-5, rtol=0)


def test_an_adapter_has_embeddings_of_its_own(serving: tuple[str, RunningWorker]) -> None:
    with serving[1].client() as client:
        plain, pirate = (
            client.post("/v1/embeddings", json={"model": model, "input": "Hi"}).json()["data"][0]["embedding"]
            for model in ("tiny", "pirate")
        )
    assert plain != pirate


def test_base64_holds_the_same_numbers(http: httpx.Client) -> None:
    body = {"model": "tiny", "input": "Hi", "dimensions": 64}
    numbers = http.post("/v1/embeddings", json=body).json()
    encoded = http.post("/v1/embeddings", json=body | {"encoding_format": "base64"}).json()
    raw = base64.b64decode(encoded["data"][0]["embedding"])
    assert array("f", raw).tolist() == pytest.approx(numbers["data"][0]["embedding"], abs=1e-6)
    assert (numbers["object"], numbers["model"]) == ("list", "tiny")
    assert numbers["data"][0]["object"] == "embedding"


def test_many_texts_are_answered_in_order(http: httpx.Client) -> None:
    texts = [[3 + i, 7] for i in range(100)]
    body = {"model": "tiny", "input": texts}
    reply = http.post("/v1/embeddings", json=body, headers={ACCOUNTING_HEADER: "1"})
    vectors = [each["embedding"] for each in reply.json()["data"]]
    alone = http.post("/v1/embeddings", json=body | {"input": texts[57]}).json()["data"][0]["embedding"]
    assert len(vectors) == 100
    assert vectors[57] == pytest.approx(alone, abs=1e-5)
    accounting = json.loads(reply.headers[ACCOUNTING_HEADER])
    assert (accounting["prompt_tokens"], accounting["completion_tokens"]) == (200, 0)


def test_a_text_may_be_as_long_as_the_window(http: httpx.Client) -> None:
    whole = http.post("/v1/embeddings", json={"model": "tiny", "input": [5] * 8192})
    assert whole.json()["usage"] == {"prompt_tokens": 8192, "total_tokens": 8192}
    reply = http.post("/v1/embeddings", json={"model": "tiny", "input": [5] * 8193})
    assert_error(reply, 400, "input")
    assert reply.json()["error"]["code"] == "context_length_exceeded"


@pytest.mark.parametrize(
    ("fields", "status", "param"),
    [
        ({"input": ""}, 400, "input"),
        ({"input": []}, 400, "input"),
        ({"input": ["a", ""]}, 400, "input[1]"),
        ({"input": ["a", 5]}, 400, "input"),
        ({"input": ["a", [5]]}, 400, "input"),
        ({"input": [[5], []]}, 400, "input[1]"),
        ({"input": [99999]}, 400, "input"),
        ({"input": [-1]}, 400, "input[0]"),
        ({"input": ["a"] * 2049}, 400, "input"),
        ({"input": "word " * 1_000_000}, 400, "input"),
        ({"input": {"text": "a"}}, 400, "input"),
        ({"model": "nobody"}, 404, "model"),
        ({"dimensions": 32}, 400, "dimensions"),
        ({"dimensions": 0}, 400, "dimensions"),
        ({"encoding_format": "int8"}, 400, "encoding_format"),
        ({"inputs": "a"}, 400, "inputs"),
    ],
)
def test_a_bad_request_names_the_field(http: httpx.Client, fields: dict[str, object], status: int, param: str) -> None:
    assert_error(http.post("/v1/embeddings", json={"model": "tiny", "input": "Hi"} | fields), status, param)
