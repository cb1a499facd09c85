"""What a web page can make its reader's browser send to a worker without a key."""

import json
from pathlib import Path

import httpx
import pytest

from tests.support.running_worker import RunningWorker

PATHS = [
    *("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/tokenize", "/v1/tokenize", "/detokenize"),
    *("/v1/load_lora_adapter", "/v1/unload_lora_adapter"),
]
SIMPLE = [None, "text/plain", "text/plain; application/json", "application/x-www-form-urlencoded", "application/jsonx"]
"""What a page may send anywhere without being asked for consent, and what only looks like JSON."""


@pytest.mark.parametrize("content_type", SIMPLE)
def test_no_body_is_read_as_json_that_does_not_say_so(http: httpx.Client, content_type: str | None) -> None:
    for path in PATHS:
        headers = {} if content_type is None else {"Content-Type": content_type}
        reply = http.post(path, content=b"{}", headers=headers)
        assert (reply.status_code, reply.json()["error"]["code"]) == (415, "unsupported_media_type"), path


def test_a_page_cannot_load_an_adapter(http: httpx.Client, worker: RunningWorker, adapter: Path) -> None:
    body = json.dumps({"lora_name": "evil", "lora_path": str(adapter)})
    for content_type, origin in (
        ("text/plain", "http://evil.example"),
        # After its name was turned into this machine's address no consent is asked for.
        ("application/json", "http://evil.example:8000"),
        ("application/json", "null"),
    ):
        headers = {"Content-Type": content_type, "Origin": origin}
        assert http.post("/v1/load_lora_adapter", content=body, headers=headers).status_code in (403, 415)
    assert worker.load()["adapters"] == ["pirate"]


def test_a_browser_that_asks_first_gets_no_consent(http: httpx.Client) -> None:
    asked = {
        "Origin": "http://localhost:3000",
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "content-type",
    }
    for path in PATHS:
        reply = http.options(path, headers=asked)
        assert reply.status_code == 405
        assert not [name for name in reply.headers if name.startswith("access-control-")]


@pytest.mark.parametrize("content_type", ["application/json", "application/json; charset=utf-8", "Application/JSON"])
@pytest.mark.parametrize("origin", [None, "http://localhost:3000", "http://127.0.0.1:8000", "http://[::1]:8000"])
def test_programs_of_this_machine_are_served(http: httpx.Client, content_type: str, origin: str | None) -> None:
    headers = {"Content-Type": content_type} | ({"Origin": origin} if origin else {})
    assert http.post("/tokenize", content=b'{"prompt": "Hi"}', headers=headers).status_code == 200
