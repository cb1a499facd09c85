"""Makes engine requests and collects their outputs."""

from itertools import count
from typing import Any

from worker.engine.engine import Engine
from worker.engine.request import EngineRequest, SamplingParams, TokenOutput

_ids = count()


def make_request(
    prompt_ids: list[int],
    *,
    max_tokens: int = 16,
    temperature: float = 0.0,
    ignore_eos: bool = True,
    adapter: str | None = None,
    deadline_at: float | None = None,
    cache_salt: str = "",
    **sampling: Any,
) -> EngineRequest:
    params = SamplingParams(temperature=temperature, max_tokens=max_tokens, ignore_eos=ignore_eos, **sampling)
    return EngineRequest(
        request_id=f"request {next(_ids)}",
        prompt_ids=prompt_ids,
        sampling=params,
        adapter=adapter,
        deadline_at=deadline_at,
        cache_salt=cache_salt,
    )


async def collect(engine: Engine, request: EngineRequest) -> list[int]:
    return [token async for output in engine.generate(request) for token in output.token_ids]


async def last_output(engine: Engine, request: EngineRequest) -> TokenOutput:
    outputs = [output async for output in engine.generate(request)]
    return outputs[-1]
