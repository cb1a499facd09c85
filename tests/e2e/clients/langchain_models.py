"""LangChain's chat and agent classes."""

import sys
from typing import Any

import openai
from checks import run
from langchain.agents import create_agent
from langchain_core.exceptions import ContextOverflowError
from langchain_core.messages import ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import SecretStr

BASE_URL, KEY, ONE_AT_A_TIME = sys.argv[1:]
KINDS = {
    "authentication": openai.AuthenticationError,
    "bad_request": openai.BadRequestError,
    "not_found": openai.NotFoundError,
    "rate_limit": openai.RateLimitError,
    "window": ContextOverflowError,
}


class Client:
    def _model(self, *, api_key: str = KEY, model: str = "large", **fields: Any) -> ChatOpenAI:
        given: dict[str, Any] = {"temperature": 0, "max_retries": 0} | fields
        return ChatOpenAI(base_url=BASE_URL, api_key=SecretStr(api_key), model=model, **given)

    def chat(self, messages: Any, **fields: Any) -> str:
        return str(self._model(**fields).invoke(messages).text)

    def stream(self, messages: Any, **fields: Any) -> str:
        return "".join(str(chunk.text) for chunk in self._model(**fields).stream(messages))

    def call_tool(self, messages: Any, offered: Any) -> tuple[str, Any]:
        """By an agent that runs it and answers with its result."""
        called: list[Any] = []

        def get_weather(city: str) -> str:
            called.append(("get_weather", {"city": city}))
            return '{"temperature": 15, "sky": "sunny"}'

        weather = tool(get_weather, description=offered["function"]["description"])
        told = create_agent(self._model(), [weather]).invoke({"messages": messages})
        assert told["messages"][-1].content == "It is sunny in Paris with 15 degrees.", told
        [call] = called
        return call[0], call[1]

    def num_logprobs(self, messages: Any) -> tuple[int, int]:
        made = self._model(logprobs=True, top_logprobs=2).invoke(messages)
        assert made.usage_metadata is not None
        return len(made.response_metadata["logprobs"]["content"]), made.usage_metadata["output_tokens"]

    def shape(self, messages: Any, schema: Any) -> Any:
        shaped = self._model(max_tokens=50).with_structured_output(schema | {"title": "timer"}, method="json_schema")
        return shaped.invoke(messages)

    def respond(self, asked: Any, **fields: Any) -> str:
        return self.chat(asked, use_responses_api=True, **fields)

    def stream_response(self, asked: Any) -> str:
        return self.stream(asked, use_responses_api=True)

    def answer_by_tool(self, asked: Any, offered: Any, result: str) -> tuple[Any, str]:
        """Its own way to go on: of the whole conversation only what is new is sent."""
        model = self._model(use_previous_response_id=True).bind_tools([offered])
        first = model.invoke(asked)
        [call] = first.tool_calls
        second = model.invoke([*asked, first, ToolMessage(result, tool_call_id=call["id"])])
        return (call["name"], call["args"]), str(second.text)

    def classes(self, error: Exception) -> set[str]:
        return {name for name, kind in KINDS.items() if isinstance(error, kind)}


run(Client(), BASE_URL, ONE_AT_A_TIME)
