"""The official client against the whole platform with the demo models."""

import openai
import pytest

from tests.support.platform import Platform

SUM = [{"role": "user", "content": "What is 17 + 25?"}]


@pytest.mark.parametrize("model", ["auto", "small", "large", "tiergate-demo-small", "tiergate-demo-large", "json"])
def test_every_kind_of_model_name_answers(client: openai.OpenAI, model: str) -> None:
    completion = client.chat.completions.create(model=model, messages=SUM, temperature=0)
    assert completion.choices[0].message.content
    assert completion.choices[0].finish_reason == "stop"
    assert completion.usage is not None
    assert completion.usage.total_tokens == completion.usage.prompt_tokens + completion.usage.completion_tokens


@pytest.mark.parametrize("model", ["auto", "small", "large", "pirate"])
def test_a_stream_says_the_same_as_the_whole_answer(client: openai.OpenAI, model: str) -> None:
    whole = client.chat.completions.create(model=model, messages=SUM, temperature=0)
    stream = client.chat.completions.create(
        model=model, messages=SUM, temperature=0, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].usage is not None
    assert whole.usage is not None
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens


def test_usage_is_not_streamed_unless_asked_for(client: openai.OpenAI) -> None:
    chunks = list(client.chat.completions.create(model="small", messages=SUM, temperature=0, stream=True))
    assert all(chunk.choices for chunk in chunks)
    assert all(chunk.usage is None for chunk in chunks)


def test_text_completions_answer(client: openai.OpenAI) -> None:
    prompt = "user\nWhat is 17 + 25?\nassistant\n"
    completion = client.completions.create(model="large", prompt=prompt, temperature=0, max_tokens=40)
    assert "42" in completion.choices[0].text


def test_models_lists_pools_models_adapters_and_auto(client: openai.OpenAI) -> None:
    ids = {model.id for model in client.models.list()}
    assert {"auto", "small", "large", "tiergate-demo-small", "tiergate-demo-large", "pirate", "support", "json"} <= ids


def test_auto_sends_easy_prompts_to_small_and_hard_ones_to_large(client: openai.OpenAI) -> None:
    easy = client.chat.completions.with_raw_response.create(model="auto", messages=[{"role": "user", "content": "Hi!"}])
    hard = client.chat.completions.with_raw_response.create(
        model="auto",
        messages=[
            {
                "role": "user",
                "content": "Solve step by step, then prove it: ((12 + 7) * 3 - 4) / 2, and write a Python function "
                "`def solve(a, b, c):` that computes it for any integers.\n```python\ndef solve(a, b, c):\n```",
            }
        ],
        max_tokens=8,
    )
    assert (easy.headers["x-tiergate-pool"], easy.headers["x-tiergate-route"]) == ("small", "simple")
    assert (hard.headers["x-tiergate-pool"], hard.headers["x-tiergate-route"]) == ("large", "complex")
    assert float(easy.headers["x-tiergate-complexity"]) < float(hard.headers["x-tiergate-complexity"])


def test_two_adapters_give_two_styles(client: openai.OpenAI) -> None:
    answers = {
        name: client.chat.completions.create(model=name, messages=SUM, temperature=0).choices[0].message.content
        for name in ("large", "pirate", "support", "json")
    }
    assert len(set(answers.values())) == 4
    assert all("42" in (answer or "") for answer in answers.values())


def test_responses_say_what_served_them(platform: Platform, client: openai.OpenAI) -> None:
    response = client.chat.completions.with_raw_response.create(model="pirate", messages=SUM)
    assert response.headers["x-request-id"]
    assert response.headers["x-tiergate-adapter"] == "pirate"
    assert response.headers["x-tiergate-model"] in {"tiergate-demo-small", "tiergate-demo-large"}
