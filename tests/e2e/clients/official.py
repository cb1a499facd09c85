import json
import sys
from typing import Any

import openai
from checks import run

BASE_URL, KEY, ONE_AT_A_TIME = sys.argv[1:]
KINDS = {
    "authentication": openai.AuthenticationError,
    "bad_request": openai.BadRequestError,
    "not_found": openai.NotFoundError,
    "rate_limit": openai.RateLimitError,
}


def connect(api_key: str = KEY, max_retries: int = 0) -> openai.OpenAI:
    return openai.OpenAI(base_url=BASE_URL, api_key=api_key, max_retries=max_retries)


class Client:
    def _create(self, messages: Any, *, api_key: str = KEY, max_retries: int = 0, **fields: Any) -> Any:
        given = {"model": "large", "temperature": 0} | fields
        return connect(api_key, max_retries).chat.completions.create(messages=messages, **given)

    def _respond(self, asked: Any, **fields: Any) -> Any:
        return connect().responses.create(input=asked, **({"model": "large", "temperature": 0} | fields))

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

    def respond(self, asked: Any, **fields: Any) -> str:
        return str(self._respond(asked, **fields).output_text)

    def stream_response(self, asked: Any) -> str:
        events = list(self._respond(asked, stream=True))
        assert [event.sequence_number for event in events] == list(range(len(events)))
        assert events[-1].type == "response.completed", events[-1]
        return "".join(event.delta for event in events if event.type == "response.output_text.delta")

    def answer_by_tool(self, asked: Any, tool: Any, result: str) -> tuple[Any, str]:
        offered = {"type": "function", "strict": None, **tool["function"]}
        first = self._respond(asked, tools=[offered])
        [call] = first.output
        told = {"type": "function_call_output", "call_id": call.call_id, "output": result}
        second = self._respond([told], tools=[offered], previous_response_id=first.id)
        return (call.name, json.loads(call.arguments)), second.output_text

    def upload(self, content: bytes) -> str:
        return connect().files.create(file=("lines.jsonl", content), purpose="batch").id

    def create_batch(self, file_id: str) -> str:
        endpoint: Any = "/v1/chat/completions"
        return connect().batches.create(input_file_id=file_id, endpoint=endpoint, completion_window="24h").id

    def batch(self, batch_id: str) -> Any:
        return connect().batches.retrieve(batch_id)

    def download(self, file_id: str) -> str:
        return connect().files.content(file_id).text

    def classes(self, error: Exception) -> set[str]:
        kinds = {name for name, kind in KINDS.items() if isinstance(error, kind)}
        is_window = isinstance(error, openai.APIError) and error.code == "context_length_exceeded"
        return kinds | ({"window"} if is_window else set())


run(Client(), BASE_URL, ONE_AT_A_TIME)
