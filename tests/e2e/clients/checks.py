"""What every client for Python is asked, in the same words: run by `test_clients.py` with a class `Client` around each.

Prints what came as JSON. Needs nothing but the standard library, since each client lives in a process of its own.
"""

import json
import threading
import time
import urllib.request
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

SUM = [{"role": "user", "content": "What is 17 + 25?"}]
WEATHER = [{"role": "user", "content": "What is the weather in Paris?"}]
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather in a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
TIMER = {
    "type": "object",
    "properties": {"minutes": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["minutes"],
    "additionalProperties": False,
}
TOO_LONG = [{"role": "user", "content": "word " * 5000}]
MISTAKES: dict[str, dict[str, Any]] = {
    "wrong_key": {"messages": SUM, "api_key": "tg-wrong-key"},
    "wrong_field": {"messages": SUM, "temperature": 1.5, "top_p": 7.0},
    "wrong_model": {"messages": SUM, "model": "no-such-model"},
    "window": {"messages": TOO_LONG},
}
RESPONSE_MISTAKES: dict[str, dict[str, Any]] = {
    "wrong_field": {"asked": SUM, "top_p": 7.0},
    "wrong_model": {"asked": SUM, "model": "no-such-model"},
    "wrong_previous": {"asked": SUM, "previous_response_id": "resp_0123456789abcdef0123456789abcdef"},
    "window": {"asked": TOO_LONG},
}
WEATHER_RESULT = '{"temperature": 15, "sky": "sunny"}'
BATCH_LINES = [
    {"custom_id": "sum", "body": {"messages": SUM}},
    {"custom_id": "wrong", "body": {"messages": SUM, "top_p": 7.0}},
]
BATCH_ENDED = ("completed", "failed", "expired", "cancelled")
BATCH_DEADLINE_S = 120.0


class Client(Protocol):
    """fields: `model`, `api_key`, `max_retries` and OpenAI's own. Each method raises the client's exceptions."""

    def chat(self, messages: list[dict[str, Any]], **fields: Any) -> str: ...
    def stream(self, messages: list[dict[str, Any]], **fields: Any) -> str: ...
    def call_tool(self, messages: list[dict[str, Any]], tool: dict[str, Any]) -> tuple[str, dict[str, Any]]: ...
    def num_logprobs(self, messages: list[dict[str, Any]]) -> tuple[int, int]:
        """Log-probabilities and completion tokens."""
        ...

    def shape(self, messages: list[dict[str, Any]], schema: dict[str, Any]) -> dict[str, Any]: ...
    def respond(self, asked: list[dict[str, Any]], **fields: Any) -> str:
        """By the Responses API."""
        ...

    def stream_response(self, asked: list[dict[str, Any]]) -> str: ...
    def answer_by_tool(
        self, asked: list[dict[str, Any]], tool: dict[str, Any], result: str
    ) -> tuple[tuple[str, dict[str, Any]], str]:
        """The call of a first response, and what a second one, which goes on from it by its id, says to the result."""
        ...

    def classes(self, error: Exception) -> set[str]:
        """The kinds that the client takes the error for, by its own classes."""
        ...


@runtime_checkable
class BatchClient(Protocol):
    """A client that also has files and batches."""

    def upload(self, content: bytes) -> str: ...
    def create_batch(self, file_id: str) -> str: ...
    def batch(self, batch_id: str) -> Any:
        """With OpenAI's fields as attributes."""
        ...

    def download(self, file_id: str) -> str: ...


def run(client: Client, base_url: str, one_at_a_time: str) -> None:
    """one_at_a_time: a key that may have one request under way."""
    scored, counted = client.num_logprobs(SUM)
    print(
        json.dumps(
            {
                "chat": client.chat(SUM),
                "stream": client.stream(SUM),
                "tool": client.call_tool(WEATHER, TOOL),
                "logprobs": scored == counted > 0,
                "shaped": sorted(client.shape(WEATHER, TIMER)),
                "response": client.respond(SUM),
                "response_stream": client.stream_response(SUM),
                "response_tool": client.answer_by_tool(WEATHER, TOOL, WEATHER_RESULT),
                "errors": {name: _error(client, client.chat, fields) for name, fields in MISTAKES.items()},
                "response_errors": {
                    name: _error(client, client.respond, fields) for name, fields in RESPONSE_MISTAKES.items()
                },
                **_retries(client, base_url, one_at_a_time),
                **(_batch(client) if isinstance(client, BatchClient) else {}),
            }
        )
    )


def _error(client: Client, ask: Callable[..., str], fields: dict[str, Any]) -> list[str]:
    try:
        ask(**fields)
    except Exception as error:
        return sorted(client.classes(error))
    return ["none"]


def _retries(client: Client, base_url: str, key: str) -> dict[str, Any]:
    """While a stream holds the only place, a request is refused with `retry-after`, and comes through by waiting."""
    body = {"model": "large", "messages": SUM, "stream": True, "max_tokens": 500, "n": 4, "ignore_eos": True}
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    request = urllib.request.Request(f"{base_url}/chat/completions", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=60) as held:
        held.readline()
        refused = _error(client, client.chat, {"messages": SUM, "api_key": key})
        reading = threading.Thread(target=held.read)
        reading.start()
        answer = client.chat(SUM, api_key=key, max_retries=50)
        reading.join()
    return {"refused": refused, "retried": answer}


def _batch(client: BatchClient) -> dict[str, Any]:
    """A line that is answered, one that is refused, and one that is no JSON."""
    lines = [json.dumps(_whole(line)) for line in BATCH_LINES]
    batch_id = client.create_batch(client.upload("\n".join([*lines, "{broken"]).encode()))
    deadline = time.monotonic() + BATCH_DEADLINE_S
    while (batch := client.batch(batch_id)).status not in BATCH_ENDED:
        assert time.monotonic() < deadline, batch
        time.sleep(0.2)
    answers, errors = (
        [json.loads(line) for line in client.download(file_id).splitlines()]
        for file_id in (batch.output_file_id, batch.error_file_id)
    )
    return {
        "batch": {
            "status": batch.status,
            "counts": [batch.request_counts.total, batch.request_counts.completed, batch.request_counts.failed],
            "answers": {
                each["custom_id"]: each["response"]["body"]["choices"][0]["message"]["content"] for each in answers
            },
            "refused": [each["custom_id"] for each in errors if each["response"]],
            "broken": [each["error"]["line"] for each in errors if each["error"]],
        }
    }


def _whole(line: dict[str, Any]) -> dict[str, Any]:
    body = {"model": "large", "temperature": 0, **line["body"]}
    return {"custom_id": line["custom_id"], "method": "POST", "url": "/v1/chat/completions", "body": body}
