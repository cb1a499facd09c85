"""Calls that must come, and strict ones: every one validates, from a demo model at a temperature of 1.5."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import jsonschema
import pytest

from tests.support.running_worker import RunningWorker, running_worker
from tests.worker.guided.conftest import SMALL
from tests.worker.server.test_continuation import check_every_cut

WEATHER = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 20},
        "days": {"type": "integer", "minimum": 1, "maximum": 9},
        "unit": {"enum": ["C", "F"]},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
}
TIMER = {"type": "object", "properties": {"minutes": {"type": "integer", "maximum": 99, "minimum": 0}}}
SCHEMAS = {"get_weather": WEATHER, "get": TIMER, "ping": {"type": "object", "maxProperties": 0}}
TOOLS = [
    {"type": "function", "function": {"name": "get_weather", "parameters": WEATHER}},
    {"type": "function", "function": {"name": "get", "parameters": TIMER | {"additionalProperties": False}}},
    {"type": "function", "function": {"name": "ping"}},
]
ASK = {
    "model": "small",
    "messages": [{"role": "user", "content": "What is the weather in Rome?"}],
    "tools": TOOLS,
    "max_tokens": 400,
}
FORMATS = ("hermes", "llama", "mistral", "pythonic")


@pytest.fixture(scope="module", params=FORMATS)
def http(request: pytest.FixtureRequest) -> Iterator[httpx.Client]:
    with (
        running_worker(SMALL, name="small", api_key="key", tool_parser=request.param) as worker,
        worker.client() as one,
    ):
        yield one


@pytest.fixture(scope="module")
def hermes() -> Iterator[RunningWorker]:
    with running_worker(SMALL, name="small", api_key="key") as worker:
        yield worker


def ask(http: httpx.Client, **fields: Any) -> list[dict[str, Any]]:
    answer = http.post("/v1/chat/completions", json=ASK | fields)
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"]  # type: ignore[no-any-return]


def refusal(http: httpx.Client, **fields: Any) -> tuple[int, str | None]:
    answer = http.post("/v1/chat/completions", json=ASK | fields)
    return answer.status_code, answer.json().get("error", {}).get("param")


def check_calls(choice: dict[str, Any]) -> list[str]:
    """Their names, after each call's arguments were checked against its schema."""
    calls = choice["message"].get("tool_calls") or []
    for call in calls:
        jsonschema.validate(json.loads(call["function"]["arguments"]), SCHEMAS[call["function"]["name"]])
    return [call["function"]["name"] for call in calls]


@pytest.mark.parametrize("seed", range(3))
def test_an_answer_that_must_be_a_call_is_one_that_validates(http: httpx.Client, seed: int) -> None:
    for choice in ask(http, tool_choice="required", temperature=1.5, seed=seed, n=4, parallel_tool_calls=False):
        assert len(check_calls(choice)) == 1
        assert (choice["message"]["content"], choice["finish_reason"]) == (None, "tool_calls")


def test_a_named_tool_is_called_once_even_with_another_whose_name_begins_alike(http: httpx.Client) -> None:
    for name in ("get", "get_weather", "ping"):
        choice = {"type": "function", "function": {"name": name}}
        assert [check_calls(each) for each in ask(http, tool_choice=choice, temperature=1.5, n=2)] == [[name]] * 2


def test_streamed_a_forced_call_is_the_whole_answers(http: httpx.Client) -> None:
    fields = {"tool_choice": "required", "seed": 3, "temperature": 1.0, "parallel_tool_calls": False}
    [whole] = ask(http, **fields)
    with http.stream("POST", "/v1/chat/completions", json=ASK | fields | {"stream": True}) as response:
        lines = [line[6:] for line in response.iter_lines() if line.startswith("data: {")]
    choices = [json.loads(line)["choices"][0] for line in lines]
    deltas = [call for choice in choices for call in choice["delta"].get("tool_calls", ())]
    [call] = whole["message"]["tool_calls"]
    assert deltas[0]["function"]["name"] == call["function"]["name"]
    assert "".join(delta["function"].get("arguments", "") for delta in deltas) == call["function"]["arguments"]
    assert choices[-1]["finish_reason"] == "tool_calls"


def test_logprobs_and_stops_hold_beside_a_forced_call(hermes: RunningWorker) -> None:
    with hermes.client() as http:
        [choice] = ask(http, tool_choice="required", temperature=0, logprobs=True, parallel_tool_calls=False)
        assert check_calls(choice) == ["get_weather"]
        assert choice["logprobs"]["content"]
        [stopped] = ask(http, tool_choice="required", temperature=0, stop='"city"')
        assert stopped["message"]["tool_calls"][0]["function"]["arguments"] == "{"
        assert stopped["finish_reason"] == "stop"


def test_a_strict_tool_is_held_where_the_model_may_choose(hermes: RunningWorker) -> None:
    tools = [{"type": "function", "function": each["function"] | {"strict": True}} for each in TOOLS]
    seen: list[str] = []
    with hermes.client() as http:
        for seed in range(3):
            for choice in ask(http, tools=tools, temperature=1.2, seed=seed, n=4):
                if choice["finish_reason"] == "tool_calls":
                    seen += check_calls(choice)
    assert seen


def test_strict_beside_a_free_choice_is_refused_where_calls_are_pythons(
    http: httpx.Client, request: pytest.FixtureRequest
) -> None:
    tools = [{"type": "function", "function": each["function"] | {"strict": True}} for each in TOOLS]
    is_pythonic = request.node.callspec.params["http"] == "pythonic"
    assert refusal(http, tools=tools, max_tokens=5) == ((400, "tools") if is_pythonic else (200, None))


def test_a_format_holds_for_answers_without_a_call(hermes: RunningWorker) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "timer", "schema": TIMER}}
    with hermes.client() as http:
        for choice in ask(http, response_format=form, temperature=1.5, n=8, seed=1, parallel_tool_calls=False):
            if choice["message"].get("tool_calls"):
                assert choice["finish_reason"] == "tool_calls"
            elif choice["finish_reason"] == "stop":
                jsonschema.validate(json.loads(choice["message"]["content"]), TIMER)


def test_what_cannot_be_held_is_refused_by_its_place(hermes: RunningWorker) -> None:
    odd = {"type": "object", "properties": {"a": {"$ref": "#/$defs/none"}}}
    tools = [*TOOLS, {"type": "function", "function": {"name": "odd", "parameters": odd}}]
    with hermes.client() as http:
        assert refusal(http, tools=tools, tool_choice="required") == (400, "tools[3].function.parameters")
        assert refusal(http, tools=tools)[0] == 200


def test_many_tools_are_held(hermes: RunningWorker) -> None:
    tools = [
        {"type": "function", "function": {"name": f"t{i}", "strict": True, "parameters": TIMER}} for i in range(128)
    ]
    fields = {"messages": [{"role": "user", "content": "Go."}], "max_tokens": 40, "parallel_tool_calls": False}
    with hermes.client() as http:
        # They do not fit into the demo model's window all together.
        [choice] = ask(http, tools=tools[:20], tool_choice="required", temperature=1.5, **fields)
        assert choice["message"]["tool_calls"][0]["function"]["name"] in {f"t{i}" for i in range(20)}
        assert refusal(http, tools=tools, tool_choice="required", **fields) == (400, "messages")
        assert refusal(http, tools=[*tools, TOOLS[0]], **fields) == (400, "tools")


def test_the_marks_of_forced_calls_are_the_tokens_that_the_model_has_learnt(hermes: RunningWorker) -> None:
    tokenizer = hermes.replica.bundle.tokenizer
    with hermes.client() as http:
        [choice] = ask(http, tool_choice="required", temperature=0, return_token_ids=True)
    marks = {tokenizer.token_id("<tool_call>"), tokenizer.token_id("</tool_call>")}
    assert marks < set(choice["token_ids"])
    assert check_calls(choice) == ["get_weather"]
    assert choice["finish_reason"] == "tool_calls"


def test_a_forced_call_that_breaks_off_anywhere_goes_on_on_another_replica(hermes: RunningWorker) -> None:
    check_every_cut(hermes, ASK | {"tool_choice": "required", "temperature": 0, "parallel_tool_calls": False})
