"""The load of other engines, read from the text that they show Prometheus, over HTTP."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web

from gateway.settings import GatewaySettings
from gateway.upstream.client import WorkerClient
from gateway.upstream.configured_members import FixedMembers
from gateway.upstream.foreign_load import ForeignLoad, read_metrics
from router.fleet import Member
from tests.support.gateways import make_settings
from tests.support.members import serving_app

# In the form that the servers write; histograms are cut short.
VLLM = b"""# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="unsloth/Llama-3.2-1B-Instruct"} 8.0
# HELP vllm:num_requests_waiting Number of requests waiting to be processed.
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="unsloth/Llama-3.2-1B-Instruct"} 3.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="unsloth/Llama-3.2-1B-Instruct",reason="capacity"} 3.0
# HELP vllm:kv_cache_usage_perc KV-cache usage. 1 means 100 percent usage.
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0",model_name="unsloth/Llama-3.2-1B-Instruct"} 0.25
# HELP vllm:iteration_tokens_total Histogram of number of tokens per engine_step.
# TYPE vllm:iteration_tokens_total histogram
vllm:iteration_tokens_total_bucket{engine="0",le="1.0",model_name="unsloth/Llama-3.2-1B-Instruct"} 3.0
"""
VLLM_TWO_ENGINES = VLLM + VLLM.replace(b'engine="0"', b'engine="1"').replace(b"0.25", b"0.75")
VLLM_0 = b"""# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{model_name="m"} 1.0
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{model_name="m"} 0.0
# TYPE vllm:gpu_cache_usage_perc gauge
vllm:gpu_cache_usage_perc{model_name="m"} 0.5
# TYPE vllm:cpu_cache_usage_perc gauge
vllm:cpu_cache_usage_perc{model_name="m"} 0.9
"""
SGLANG = b"""# HELP sglang:token_usage The token usage
# TYPE sglang:token_usage gauge
sglang:token_usage{model_name="meta-llama/Llama-3.1-8B-Instruct"} 0.28
# HELP sglang:num_running_reqs The number of running requests
# TYPE sglang:num_running_reqs gauge
sglang:num_running_reqs{model_name="meta-llama/Llama-3.1-8B-Instruct"} 162.0
# HELP sglang:num_used_tokens The number of used tokens
# TYPE sglang:num_used_tokens gauge
sglang:num_used_tokens{model_name="meta-llama/Llama-3.1-8B-Instruct"} 123859.0
# HELP sglang:num_queue_reqs The number of requests in the waiting queue
# TYPE sglang:num_queue_reqs gauge
sglang:num_queue_reqs{model_name="meta-llama/Llama-3.1-8B-Instruct"} 2826.0
"""
TGI = b"""# TYPE tgi_queue_size gauge
tgi_queue_size 2
# TYPE tgi_batch_current_size gauge
tgi_batch_current_size 4
# TYPE tgi_batch_current_max_tokens gauge
tgi_batch_current_max_tokens 4096
"""
LLAMA_CPP = b"""# HELP llamacpp:kv_cache_usage_ratio KV-cache usage. 1 means 100 percent usage.
# TYPE llamacpp:kv_cache_usage_ratio gauge
llamacpp:kv_cache_usage_ratio 0.42
# HELP llamacpp:requests_processing Number of requests processing.
# TYPE llamacpp:requests_processing gauge
llamacpp:requests_processing 1
# HELP llamacpp:requests_deferred Number of requests deferred.
# TYPE llamacpp:requests_deferred gauge
llamacpp:requests_deferred 19
"""
LLAMA_CPP_QUOTED = (
    b'"# TYPE llamacpp:requests_processing gauge\\nllamacpp:requests_processing 2\\nllamacpp:requests_deferred 0\\n"'
)
TOLD = [
    (VLLM, ForeignLoad(8, 3, 0.25)),
    (VLLM_TWO_ENGINES, ForeignLoad(16, 6, 0.5)),
    (VLLM_0, ForeignLoad(1, 0, 0.5)),
    (SGLANG, ForeignLoad(162, 2826, 0.28)),
    (TGI, ForeignLoad(4, 2, None)),
    (LLAMA_CPP, ForeignLoad(1, 19, 0.42)),
    (LLAMA_CPP_QUOTED, ForeignLoad(2, 0, None)),
]
NAMES = ["vllm", "vllm-two-engines", "vllm-0", "sglang", "tgi", "llama.cpp", "llama.cpp-quoted"]
MODELS = {"object": "list", "data": [{"id": "theirs", "object": "model"}, {"id": "an-adapter", "object": "model"}]}


@asynccontextmanager
async def seen(tmp_path: Path, metrics: bytes | None) -> AsyncIterator[tuple[FixedMembers, list[str]]]:
    """The member as the gateway sees it, and the paths that it asks for; None: the server shows no metrics."""
    asked: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        asked.append(request.path)
        if request.path == "/v1/models":
            return web.json_response(MODELS)
        if request.path == "/metrics" and metrics is not None:
            return web.Response(body=metrics, content_type="text/plain")
        return web.Response(status=404)

    app = web.Application()
    app.router.add_get("/{path:.*}", answer)
    async with serving_app(app) as url:
        member = {"url": url, "engine": "openai", "model": "theirs"}
        pools = {"large": {"model": "ours", "context_window": 512, "members": [member]}}
        settings: GatewaySettings = make_settings(tmp_path, "redis://127.0.0.1:1", pools=pools)
        async with WorkerClient(settings) as client:
            yield FixedMembers(settings, client), asked


async def look(fixed: FixedMembers) -> Member:
    await fixed.check()
    [(_, member)] = fixed.members()
    return member


@pytest.mark.parametrize(("text", "told"), TOLD, ids=NAMES)
async def test_the_load_of_another_engine_is_read(tmp_path: Path, text: bytes, told: ForeignLoad) -> None:
    assert read_metrics(text) == told
    async with seen(tmp_path, text) as (fixed, _):
        member = await look(fixed)
        assert member.is_healthy and member.load is not None
        assert (member.load.num_running, member.load.num_waiting) == (told.num_running, told.num_waiting)
        assert member.load.num_free_blocks == round(1000 * (1 - (told.kv_usage or 0)))
        assert member.load.adapters == ("an-adapter",)


@pytest.mark.parametrize(
    "text",
    [
        None,
        b"",
        b"<html>",
        b"up 1\n",
        b"vllm:num_requests_waiting NaN\n",
        b"vllm:num_requests_waiting -1\n",
        b"vllm:num_requests_waiting +Inf\n",
        b'"not json',
    ],
    ids=str,
)
async def test_who_tells_nothing_sensible_is_trusted_and_asked_rarely(tmp_path: Path, text: bytes | None) -> None:
    async with seen(tmp_path, text) as (fixed, asked):
        for _ in range(3):
            member = await look(fixed)
            assert member.is_healthy and member.load is None
        assert asked.count("/metrics") == 1 and asked.count("/v1/models") == 3
