"""Compares decoding a chat request with msgspec (as `protocol/` does) and with pydantic, as a ratio in one run.

python -m benchmarks.protocol
"""

import json
import time
from collections.abc import Callable
from typing import Annotated, Literal

import msgspec
import pydantic

from protocol.checks import check_request, decode_body
from protocol.requests import ChatCompletionRequest


class PydanticMessage(pydantic.BaseModel):
    role: Literal["system", "user", "assistant", "tool"]
    content: str


class PydanticRequest(pydantic.BaseModel):
    model: str
    messages: Annotated[list[PydanticMessage], pydantic.Field(min_length=1)]
    temperature: Annotated[float, pydantic.Field(ge=0, le=2)] | None = None
    max_tokens: Annotated[int, pydantic.Field(ge=1)] | None = None
    stream: bool | None = None


def main() -> None:
    decoder = msgspec.json.Decoder(ChatCompletionRequest)
    print(f"{'messages':>8} {'bytes':>8} {'msgspec us':>11} {'pydantic us':>12} {'ratio':>6}")
    for num_messages in (1, 10, 100):
        body = _request_body(num_messages)
        ours = _microseconds(lambda body=body: check_request(decode_body(body, decoder)))
        theirs = _microseconds(lambda body=body: PydanticRequest.model_validate_json(body))
        print(f"{num_messages:>8} {len(body):>8} {ours:>11.1f} {theirs:>12.1f} {theirs / ours:>6.1f}")


def _request_body(num_messages: int) -> bytes:
    roles = ("user", "assistant")
    messages = [{"role": roles[i % 2], "content": "What is the capital of France? " * 8} for i in range(num_messages)]
    return json.dumps(
        {"model": "auto", "messages": messages, "temperature": 0.7, "max_tokens": 256, "stream": True}
    ).encode()


def _microseconds(call: Callable[[], object], *, repeats: int = 2000) -> float:
    """The best of five rounds, so that other load on the machine has no effect."""
    best = float("inf")
    for _ in range(5):
        started = time.perf_counter()
        for _ in range(repeats // 5):
            call()
        best = min(best, (time.perf_counter() - started) / (repeats // 5))
    return best * 1e6


if __name__ == "__main__":
    main()
