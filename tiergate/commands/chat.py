import json
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tiergate.failure import Failure

if TYPE_CHECKING:
    import httpx

Message = dict[str, Any]
TIMEOUT_S = 600.0
"""The longest time between two events of a stream; a request may wait in a queue."""


def chat(
    prompt: Annotated[
        str | None, typer.Argument(help="A single question; without it a conversation, which Ctrl-D ends.")
    ] = None,
    model: Annotated[str, typer.Option(help="auto, or the name of a pool, model or adapter.")] = "auto",
    system: Annotated[str | None, typer.Option(help="A system prompt.")] = None,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="The maximum length of an answer, in tokens.")] = None,
    temperature: Annotated[
        float | None, typer.Option(min=0, max=2, help="The sampling temperature; 0 is greedy.")
    ] = None,
    base_url: Annotated[str, typer.Option(envvar="TIERGATE_BASE_URL", help="The gateway's base URL.")] = (
        "http://127.0.0.1:8080/v1"
    ),
    api_key: Annotated[str, typer.Option(envvar="TIERGATE_API_KEY", help="A key with the scope inference.")] = "",
) -> None:
    """Chat in the terminal."""
    import httpx

    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    fields = {"model": model, "max_tokens": max_tokens, "temperature": temperature}
    body = {name: value for name, value in fields.items() if value is not None}
    messages: list[Message] = [{"role": "system", "content": system}] if system else []
    origin = base_url.rstrip("/").removesuffix("/v1")
    try:
        with httpx.Client(base_url=f"{origin}/v1", headers=headers, timeout=TIMEOUT_S) as http:
            for question in _questions(prompt):
                messages.append({"role": "user", "content": question})
                answer = _answer(http, {**body, "messages": messages, "stream": True})
                messages.append({"role": "assistant", "content": answer})
    except httpx.HTTPError as error:
        raise Failure(f"{base_url} does not answer: {error or type(error).__name__}", exit_code=1) from error
    except (httpx.InvalidURL, UnicodeEncodeError) as error:
        raise Failure(f"--base-url or --api-key cannot be used: {error}") from error


def _questions(prompt: str | None) -> Iterator[str]:
    if prompt is not None:
        yield prompt
        return
    while True:
        try:
            question = input("> " if sys.stdin.isatty() else "").strip()
        except EOFError:
            return
        if question:
            yield question


def _answer(http: "httpx.Client", body: dict[str, Any]) -> str:
    """Print the answer while it arrives, and return all of it."""
    parts: list[str] = []
    with http.stream("POST", "/chat/completions", json=body) as response:
        if response.is_error:
            response.read()
            raise Failure(_error_message(response.text), exit_code=1)
        for line in response.iter_lines():
            text = _text_of(line)
            parts.append(text)
            sys.stdout.write(text)
            sys.stdout.flush()
        sys.stdout.write("\n")
        if sys.stderr.isatty():
            served, why = (response.headers.get(f"x-tiergate-{name}", "?") for name in ("model", "route"))
            sys.stderr.write(f"\x1b[2m{served} ({why})\x1b[0m\n")
    return "".join(parts)


def _text_of(line: str) -> str:
    """The text that one line of the stream adds. Raises Failure on an error event."""
    if not line.startswith("data: ") or line == "data: [DONE]":
        return ""
    event = json.loads(line.removeprefix("data: "))
    if "error" in event:
        raise Failure(event["error"]["message"], exit_code=1)
    return "".join(choice["delta"].get("content") or "" for choice in event["choices"])


def _error_message(body: str) -> str:
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return body[:200]
