"""The official client against a worker."""

import openai
import pytest

HI = [{"role": "user", "content": "What is the capital of France?"}]


@pytest.mark.parametrize("model", ["tiny", "pirate"])
def test_a_stream_says_what_the_whole_answer_says(client: openai.OpenAI, model: str) -> None:
    whole = client.chat.completions.create(model=model, messages=HI, temperature=0, max_tokens=40)
    chunks = list(
        client.chat.completions.create(
            model=model,
            messages=HI,
            temperature=0,
            max_tokens=40,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-2].choices[0].finish_reason == whole.choices[0].finish_reason
    assert whole.usage is not None
    assert chunks[-1].usage == whole.usage.model_copy(
        update={"prompt_tokens_details": chunks[-1].usage.prompt_tokens_details if chunks[-1].usage else None}
    )
    assert all(chunk.usage is None for chunk in chunks[:-1])
    assert {chunk.id for chunk in chunks} != {whole.id}
    assert whole.id.startswith("chatcmpl-")
    assert whole.model == model


def test_an_adapter_changes_the_answer(client: openai.OpenAI) -> None:
    texts = [
        client.chat.completions.create(model=model, messages=HI, temperature=0, max_tokens=20).choices[0].message
        for model in ("tiny", "pirate")
    ]
    assert texts[0].content != texts[1].content


def test_text_completions_take_text_or_token_ids(client: openai.OpenAI, http: object) -> None:
    text = "The quick brown fox"
    ids = client.post("/tokenize", body={"prompt": text}, cast_to=object)["tokens"]  # type: ignore[index]
    answers = [
        client.completions.create(model="tiny", prompt=prompt, temperature=0, max_tokens=10).choices[0].text
        for prompt in (text, ids)
    ]
    streamed = client.completions.create(model="tiny", prompt=text, temperature=0, max_tokens=10, stream=True)
    assert answers == ["".join(chunk.choices[0].text for chunk in streamed)] * 2


def test_usage_in_each_chunk_grows(client: openai.OpenAI) -> None:
    chunks = list(
        client.chat.completions.create(
            model="tiny",
            messages=HI,
            max_tokens=10,
            stream=True,
            stream_options={"include_usage": True},
            extra_body={"stream_options": {"include_usage": True, "continuous_usage_stats": True}, "ignore_eos": True},
        )
    )
    counts = [chunk.usage.completion_tokens for chunk in chunks if chunk.usage]
    assert len(counts) == len(chunks)
    assert counts == sorted(counts)
    assert counts[-1] == 10
    # Nothing was sent yet with the chunk that tells the role.
    assert chunks[0].choices[0].delta.role == "assistant" and counts[0] == 0


def test_models_lists_the_model_and_its_adapters(client: openai.OpenAI) -> None:
    models = {model.id: model for model in client.models.list()}
    assert set(models) == {"tiny", "pirate"}
    assert models["pirate"].parent == "tiny"  # type: ignore[attr-defined]


def test_without_a_limit_an_answer_ends_with_the_window(client: openai.OpenAI) -> None:
    prompt = [5] * 8180
    completion = client.completions.create(model="tiny", prompt=prompt, extra_body={"ignore_eos": True})
    assert completion.choices[0].finish_reason == "length"
    assert completion.usage is not None
    assert completion.usage.total_tokens == 8192


def test_a_seed_repeats_an_answer(client: openai.OpenAI) -> None:
    texts = [
        client.completions.create(model="tiny", prompt="a", seed=7, temperature=1, max_tokens=20).choices[0].text
        for _ in range(2)
    ]
    assert texts[0] == texts[1]


def test_the_request_id_is_the_callers_if_it_sent_one(client: openai.OpenAI) -> None:
    reply = client.chat.completions.with_raw_response.create(
        model="tiny", messages=HI, max_tokens=1, extra_headers={"X-Request-Id": "abc-1"}
    )
    assert reply.headers["x-request-id"] == "abc-1"
    assert reply.parse().id == "chatcmpl-abc-1"
