"""LiteLLM's client."""

import json
import os
import sys
from typing import Any

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

import litellm
from checks import run

BASE_URL, KEY, ONE_AT_A_TIME = sys.argv[1:]
PLACE: dict[str, Any] = {"api_base": BASE_URL, "api_key": KEY}
OPENAI: dict[str, Any] = PLACE | {"custom_llm_provider": "openai"}
KINDS = {
    "authentication": litellm.AuthenticationError,
    "bad_request": litellm.BadRequestError,
    "not_found": litellm.NotFoundError,
    "rate_limit": litellm.RateLimitError,
    "window": litellm.ContextWindowExceededError,
}


class Client:
    def _create(self, messages: Any, *, model: str = "large", api_key: str = KEY, **fields: Any) -> Any:
        given = {"temperature": 0, "max_retries": 0} | fields
        return litellm.completion(f"openai/{model}", messages=messages, api_base=BASE_URL, api_key=api_key, **given)

    def chat(self, messages: Any, **fields: Any) -> str:
        return str(self._create(messages, **fields).choices[0].message.content)

    def stream(self, messages: Any, **fields: Any) -> str:
        return "".join(chunk.choices[0].delta.content or "" for chunk in self._create(messages, stream=True, **fields))

    def call_tool(self, messages: Any, tool: Any) -> tuple[str, Any]:
        [call] = self._create(messages, tools=[tool]).choices[0].message.tool_calls
        return call.function.name, json.loads(call.function.arguments)

    def num_logprobs(self, messages: Any) -> tuple[int, int]:
        made = self._create(messages, logprobs=True, top_logprobs=2)
        return len(made.choices[0].logprobs.content), made.usage.completion_tokens

    def shape(self, messages: Any, schema: Any) -> Any:
        wanted = {"type": "json_schema", "json_schema": {"name": "timer", "schema": schema, "strict": True}}
        return json.loads(self.chat(messages, response_format=wanted, max_tokens=50))

    def _respond(self, asked: Any, *, model: str = "large", **fields: Any) -> Any:
        return litellm.responses(asked, f"openai/{model}", **(PLACE | {"temperature": 0, "max_retries": 0} | fields))

    def respond(self, asked: Any, **fields: Any) -> str:
        return str(self._respond(asked, **fields).output_text)

    def stream_response(self, asked: Any) -> str:
        events = self._respond(asked, stream=True)
        return "".join(event.delta for event in events if event.type == "response.output_text.delta")

    def answer_by_tool(self, asked: Any, tool: Any, result: str) -> tuple[Any, str]:
        offered = {"type": "function", **tool["function"]}
        first = self._respond(asked, tools=[offered])
        [call] = first.output
        told = {"type": "function_call_output", "call_id": call.call_id, "output": result}
        second = self._respond([told], tools=[offered], previous_response_id=first.id)
        return (call.name, json.loads(call.arguments)), str(second.output_text)

    def upload(self, content: bytes) -> str:
        return str(litellm.create_file(file=("lines.jsonl", content), purpose="batch", **OPENAI).id)

    def create_batch(self, file_id: str) -> str:
        asked: dict[str, Any] = {"completion_window": "24h", "endpoint": "/v1/chat/completions"}
        return str(litellm.create_batch(input_file_id=file_id, **asked, **OPENAI).id)

    def batch(self, batch_id: str) -> Any:
        return litellm.retrieve_batch(batch_id, **OPENAI)

    def download(self, file_id: str) -> str:
        return str(litellm.file_content(file_id, **OPENAI).content.decode())

    def classes(self, error: Exception) -> set[str]:
        return {name for name, kind in KINDS.items() if isinstance(error, kind)}


run(Client(), BASE_URL, ONE_AT_A_TIME)
