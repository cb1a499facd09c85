"""The large demo model asks for tools, the platform calls them, and the model answers from what they say."""

import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import openai
import pytest

from tests.support.platform import Platform, wait_until

ANSWERS = {"/weather": {"temperature": 21, "sky": "sunny"}, "/order": {"state": "shipped"}}
TOOLS = {
    "get_weather": ("Get the weather in a city", {"city": "string"}, "/weather"),
    "find_order": ("Look up an order", {"order_id": "integer"}, "/order"),
}
QUESTIONS = (
    ("What is the weather in Rome?", "/weather", {"city": "Rome"}, "It is sunny in Rome with 21 degrees."),
    ("Where is order 4711?", "/order", {"order_id": 4711}, "Order 4711 is shipped."),
)


@dataclass
class Server:
    url: str
    calls: list[tuple[str, Any, str | None]] = field(default_factory=list)
    """Path, arguments, credential."""


@pytest.fixture(scope="module")
def server(platform: Platform) -> Iterator[Server]:
    """The tools' server, registered for everybody."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            arguments = json.loads(self.rfile.read(int(self.headers["content-length"])))
            found.calls.append((self.path, arguments, self.headers["authorization"]))
            body = json.dumps(ANSWERS[self.path]).encode()
            self.send_response(200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *_: object) -> None:
            return

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listening, platform.admin() as admin:
        found = Server(f"http://127.0.0.1:{listening.server_address[1]}")
        thread = threading.Thread(target=listening.serve_forever)
        thread.start()
        ids = []
        for name, (description, parameters, path) in TOOLS.items():
            properties = {each: {"type": kind} for each, kind in parameters.items()}
            draft = {
                "name": name,
                "description": description,
                "parameters": {"type": "object", "properties": properties, "required": list(parameters)},
                "url": found.url + path,
                "credential": {"secret": "Bearer xyzzy"},
            }
            ids.append(admin.post("/tools", json=draft).raise_for_status().json()["id"])
        yield found
        for tool_id in ids:
            admin.delete(f"/tools/{tool_id}").raise_for_status()
        listening.shutdown()
        thread.join()


@pytest.mark.parametrize("is_streamed", [False, True])
def test_questions_are_answered_from_what_the_tools_say(
    platform: Platform, client: openai.OpenAI, server: Server, is_streamed: bool
) -> None:
    for question, path, arguments, answer in QUESTIONS:
        server.calls.clear()
        asked: Any = {
            "model": "large",
            "messages": [{"role": "user", "content": question}],
            "temperature": 0,
            "extra_body": {"server_tools": list(TOOLS)},
        }
        if is_streamed:
            options: Any = {"include_usage": True}
            with client.chat.completions.stream(**asked, stream_options=options) as stream:
                reply = stream.get_final_completion()
        else:
            reply = client.chat.completions.create(**asked)
        assert reply.choices[0].message.content == answer
        assert (reply.choices[0].finish_reason, reply.choices[0].message.tool_calls) == ("stop", None)
        assert server.calls == [(path, arguments, "Bearer xyzzy")]
        request_id = reply.id.removeprefix("chatcmpl-")

        def rounds(of: str = request_id) -> list[dict[str, Any]]:
            return [row for row in platform.usage_rows() if of in (row["request_id"], row["client_request_id"])]

        wait_until(lambda: len(rounds()) == 2, deadline_s=60)
        usage = reply.usage
        assert usage is not None
        assert usage.prompt_tokens == sum(row["prompt_tokens"] for row in rounds())
        assert usage.completion_tokens == sum(row["completion_tokens"] for row in rounds())
