"""Answers that follow a format, over HTTP, from a demo model."""

import asyncio
import json
import re
from collections.abc import Iterator
from typing import Any

import httpx
import jsonschema
import openai
import pytest

from tests.support.running_worker import RunningWorker, running_worker
from tests.worker.guided.conftest import SMALL

ASK = {
    "messages": [{"role": "user", "content": "Tell me about a person in JSON."}],
    "model": "small",
    "max_tokens": 300,
}
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 130},
        "pets": {"type": "array", "items": {"enum": ["cat", "dog"]}, "maxItems": 2},
    },
    "required": ["name", "age", "pets"],
    "additionalProperties": False,
}
AS_PERSON = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON, "strict": True}}


@pytest.fixture(scope="module")
def worker() -> Iterator[RunningWorker]:
    with running_worker(SMALL, name="small", api_key="key") as running:
        yield running


@pytest.fixture
def http(worker: RunningWorker) -> Iterator[httpx.Client]:
    with worker.client() as client:
        yield client


def ask(http: httpx.Client, **fields: Any) -> dict[str, Any]:
    answer = http.post("/v1/chat/completions", json=ASK | fields)
    assert answer.status_code == 200, answer.text
    return answer.json()  # type: ignore[no-any-return]


def content(answer: dict[str, Any], index: int = 0) -> str:
    return answer["choices"][index]["message"]["content"]  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("fields", "pattern"),
    [
        ({"structured_outputs": {"choice": ["red", "green"]}}, "red|green"),
        ({"structured_outputs": {"regex": "[0-9]{3}-[0-9]{4}"}}, "[0-9]{3}-[0-9]{4}"),
        ({"structured_outputs": {"grammar": 'root ::= "yes" | "no"'}}, "yes|no"),
        ({"guided_regex": "a{3}"}, "aaa"),
        ({"guided_choice": ["ß", "é"]}, "ß|é"),
    ],
)
def test_vllms_forms_are_held(http: httpx.Client, fields: dict[str, Any], pattern: str) -> None:
    for temperature in (0, 1.5):
        answer = ask(http, temperature=temperature, **fields)
        assert re.fullmatch(pattern, content(answer))
        assert answer["choices"][0]["finish_reason"] == "stop"


def test_a_text_completion_is_held_too(http: httpx.Client) -> None:
    body = {"model": "small", "prompt": "It is", "structured_outputs": {"choice": ["sunny", "raining"]}}
    answer = http.post("/v1/completions", json=body).json()
    assert answer["choices"][0]["text"] in ("sunny", "raining")


def test_an_object_is_an_object(http: httpx.Client) -> None:
    finished = 0
    for seed in range(8):
        answer = ask(http, response_format={"type": "json_object"}, seed=seed, temperature=0.7)
        if answer["choices"][0]["finish_reason"] == "stop":
            assert isinstance(json.loads(content(answer)), dict)
            finished += 1
    assert finished


def test_n_answers_with_and_without_a_stream_and_logprobs_hold_the_schema(http: httpx.Client) -> None:
    fields = {"response_format": AS_PERSON, "n": 3, "seed": 4, "temperature": 1.5}
    whole = ask(http, **fields)
    scored = ask(http, **fields, logprobs=True)
    with http.stream("POST", "/v1/chat/completions", json=ASK | fields | {"stream": True}) as stream:
        events = [json.loads(line[6:]) for line in stream.iter_lines() if line.startswith("data: {")]
    for i in range(3):
        jsonschema.validate(json.loads(content(whole, i)), PERSON)
        deltas = [
            each["delta"].get("content") or "" for event in events for each in event["choices"] if each["index"] == i
        ]
        assert "".join(deltas) == content(whole, i)
        assert content(scored, i) == content(whole, i)
        tokens = scored["choices"][i]["logprobs"]["content"]
        assert "".join(each["token"] for each in tokens[:-1]) == content(whole, i)
    assert scored["usage"] == whole["usage"]
    assert whole["usage"]["completion_tokens"] == sum(len(each["logprobs"]["content"]) for each in scored["choices"])


def test_an_answer_that_is_cut_says_length_and_a_stop_string_stops(http: httpx.Client) -> None:
    cut = ask(http, response_format=AS_PERSON, max_tokens=6)
    assert cut["choices"][0]["finish_reason"] == "length"
    assert cut["usage"]["completion_tokens"] == 6
    stopped = ask(http, structured_outputs={"regex": "one two three four"}, stop=[" three"])
    assert content(stopped) == "one two"
    assert stopped["choices"][0]["finish_reason"] == "stop"


@pytest.mark.parametrize(
    ("fields", "param", "place"),
    [
        (PERSON | {"properties": {"a": {"not": {}}}}, "response_format.json_schema.schema", "properties/a"),
        ({"$ref": "https://example.com/x.json"}, "response_format.json_schema.schema", "$ref"),
        ({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}, "response_format", "without end"),
        ({"enum": ["x" * 1_000_000]}, "response_format.json_schema.schema", "65536"),
    ],
    ids=["unsupported", "remote", "endless", "1 MB"],
)
def test_a_schema_that_cannot_be_held_is_a_400_that_names_the_place(
    http: httpx.Client, fields: dict[str, Any], param: str, place: str
) -> None:
    schema = {"type": "json_schema", "json_schema": {"name": "x", "schema": fields}}
    for stream in (False, True):
        answer = http.post("/v1/chat/completions", json=ASK | {"response_format": schema, "stream": stream})
        assert answer.status_code == 400
        error = answer.json()["error"]
        assert error["param"].startswith(param)
        assert place in error["message"]


def test_what_is_compiled_is_kept_and_counted(http: httpx.Client) -> None:
    def counted(name: str) -> float:
        found = re.search(rf"^tiergate_{name}\{{[^}}]*\}} (\S+)$", http.get("/metrics").text, re.MULTILINE)
        return float(found[1]) if found else 0.0

    before = counted("grammar_cache_hits_total"), counted("constrained_requests_total")
    compiled = counted("grammar_compile_seconds_count")
    for _ in range(3):
        ask(http, structured_outputs={"choice": ["counted once"]})
    assert counted("grammar_compile_seconds_count") == compiled + 1
    assert (counted("grammar_cache_hits_total"), counted("constrained_requests_total")) == (
        before[0] + 2,
        before[1] + 3,
    )


async def test_100_new_schemas_at_once_are_all_answered(worker: RunningWorker) -> None:
    async with openai.AsyncOpenAI(base_url=worker.base_url, api_key="key", max_retries=0, timeout=60) as client:
        answers = await asyncio.gather(
            *(
                client.chat.completions.create(
                    model="small",
                    messages=[{"role": "user", "content": "hi"}],
                    extra_body={"structured_outputs": {"choice": [f"answer number {i}"]}},
                )
                for i in range(100)
            )
        )
    assert [each.choices[0].message.content for each in answers] == [f"answer number {i}" for i in range(100)]


def test_another_replica_goes_on_with_a_constrained_answer(worker: RunningWorker, http: httpx.Client) -> None:
    fields = ASK | {"response_format": AS_PERSON, "seed": 5, "temperature": 1.5, "stream": True}
    told = {"X-Tiergate-Accounting": "1"}
    whole = _read(http, fields, told)
    ids = [each for event in whole for each in event[1]]
    assert len(whole) > 6
    for cut in (2, 4, len(whole) - 2):
        given = [each for event in whole[:cut] for each in event[1]]
        rest = _read(http, fields | {"continue_from": [given]}, told)
        assert given + [each for event in rest for each in event[1]] == ids
        assert "".join(event[0] for event in whole[:cut] + rest) == "".join(event[0] for event in whole)


def _read(http: httpx.Client, body: dict[str, Any], headers: dict[str, str]) -> list[tuple[str, list[int]]]:
    """Text and ids of each event."""
    found: list[tuple[str, list[int]]] = []
    ids: list[int] = []
    with http.stream("POST", "/v1/chat/completions", json=body, headers=headers) as stream:
        assert stream.status_code == 200, stream.read()
        for line in stream.iter_lines():
            if line.startswith(": tokens "):
                ids = [int(each) for each in line.removeprefix(": tokens ").split(",")]
            elif line.startswith("data: {"):
                choices = json.loads(line[6:])["choices"]
                found.append(("".join(each["delta"].get("content") or "" for each in choices), ids))
                ids = []
    return found
