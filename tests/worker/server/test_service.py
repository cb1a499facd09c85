"""What a worker tells of itself, and adapters that come and go while it serves."""

import time
from pathlib import Path

import httpx
from prometheus_client.parser import text_string_to_metric_families

from protocol.messages import UserMessage
from tests.support.checkpoints import make_tiny_adapter
from tests.support.running_worker import RunningWorker, running_worker
from text.bundle import Bundle

CHAT = [{"role": "user", "content": "Hi 👍"}]


def test_the_bundle_counts_what_the_worker_bills(http: httpx.Client) -> None:
    bundle = Bundle.from_bytes(http.get("/tokenizer").content)
    reply = http.post("/v1/chat/completions", json={"model": "tiny", "messages": CHAT, "max_tokens": 1}).json()
    assert len(bundle.encode_chat([UserMessage(content="Hi 👍")])) == reply["usage"]["prompt_tokens"]
    assert bundle.max_model_len == 8192


def test_tokenize_and_detokenize_are_inverse(http: httpx.Client) -> None:
    for prefix in ("", "/v1"):
        made = http.post(f"{prefix}/tokenize", json={"prompt": "Grüße 👍 <|im_end|>"}).json()
        assert made["count"] == len(made["tokens"])
        assert made["max_model_len"] == 8192
        back = http.post(f"{prefix}/detokenize", json={"tokens": made["tokens"]}).json()
        assert back == {"prompt": "Grüße 👍 <|im_end|>"}


def test_tokenize_renders_a_chat_as_the_completion_does(http: httpx.Client) -> None:
    made = http.post("/tokenize", json={"messages": CHAT, "model": "tiny"}).json()
    reply = http.post("/v1/chat/completions", json={"model": "tiny", "messages": CHAT, "max_tokens": 1}).json()
    assert made["count"] == reply["usage"]["prompt_tokens"]


def test_a_long_prompt_is_counted_the_same_in_a_thread(http: httpx.Client) -> None:
    text = "abcdefgh " * 2500
    count = http.post("/tokenize", json={"prompt": text}).json()["count"]
    reply = http.post("/v1/completions", json={"model": "tiny", "prompt": text, "max_tokens": 1})
    assert str(count) in reply.json()["error"]["message"]


def test_a_prompt_of_megabytes_is_refused_at_once(http: httpx.Client) -> None:
    started = time.monotonic()
    reply = http.post("/v1/completions", json={"model": "tiny", "prompt": "word " * 1_500_000})
    assert reply.json()["error"]["param"] == "prompt"
    assert "at least" in reply.json()["error"]["message"]
    assert time.monotonic() - started < 3


def test_metrics_have_the_names_of_vllm(http: httpx.Client) -> None:
    http.post("/v1/completions", json={"model": "tiny", "prompt": "Hi", "max_tokens": 5, "ignore_eos": True})
    families = {family.name: family for family in text_string_to_metric_families(http.get("/metrics").text)}
    for name in (
        "num_requests_running",
        "num_requests_waiting",
        "kv_cache_usage_perc",
        "prefix_cache_queries",
        "prefix_cache_hits",
        "num_preemptions",
        "time_to_first_token_seconds",
        "inter_token_latency_seconds",
        "e2e_request_latency_seconds",
        "request_queue_time_seconds",
        "prompt_tokens",
        "generation_tokens",
        "failed_steps",
        "nan_rows",
        "lora_requests_info",
    ):
        assert f"tiergate_{name}" in families
    counts = {s.name: s.value for s in families["tiergate_time_to_first_token_seconds"].samples}
    assert counts["tiergate_time_to_first_token_seconds_count"] >= 1
    (generated,) = families["tiergate_generation_tokens"].samples
    labels = {"model_name": "tiny", "engine": "0"}
    assert (generated.name, generated.labels) == ("tiergate_generation_tokens_total", labels)
    assert generated.value >= 5


def lora_labels(http: httpx.Client) -> dict[str, str]:
    families = {family.name: family for family in text_string_to_metric_families(http.get("/metrics").text)}
    (sample,) = families["tiergate_lora_requests_info"].samples
    assert abs(sample.value - time.time()) < 60
    return sample.labels


def test_metrics_name_the_adapters_in_use_as_vllm_does(checkpoint: Path, adapter: Path) -> None:
    idle = {"max_lora": "32", "running_lora_adapters": "", "waiting_lora_adapters": ""}
    body = {"model": "pirate", "prompt": "Hi", "max_tokens": 8000, "ignore_eos": True, "stream": True}
    with running_worker(checkpoint, max_num_seqs=1, adapters={"pirate": adapter}) as small, small.client() as client:
        assert lora_labels(client) == idle
        with client.stream("POST", "/v1/completions", json=body) as running:
            tokens = running.iter_lines()
            next(tokens)
            assert lora_labels(client) == idle | {"running_lora_adapters": "pirate"}
            with client.stream("POST", "/v1/completions", json=body) as waiting:
                notices = waiting.iter_lines()
                next(notices)
                both = {"running_lora_adapters": "pirate", "waiting_lora_adapters": "pirate"}
                assert lora_labels(client) == idle | both


def test_an_adapter_comes_and_goes(http: httpx.Client, worker: RunningWorker, checkpoint: Path, tmp_path: Path) -> None:
    folder = make_tiny_adapter(tmp_path / "new", checkpoint, seed=5)
    ask = {"model": "new", "prompt": "Hi", "max_tokens": 2}
    assert http.post("/v1/completions", json=ask).status_code == 404
    loaded = http.post("/v1/load_lora_adapter", json={"lora_name": "new", "lora_path": str(folder)})
    assert loaded.status_code == 200, loaded.text
    assert http.post("/v1/completions", json=ask).json()["model"] == "new"
    load = worker.load()
    assert load["adapters"] == load["resident_adapters"] == ["new", "pirate"]
    again = {"lora_name": "new", "lora_path": str(folder)}
    assert http.post("/v1/load_lora_adapter", json=again).status_code == 400
    assert http.post("/v1/load_lora_adapter", json=again | {"load_inplace": True}).status_code == 200
    assert http.post("/v1/completions", json=ask).json()["model"] == "new"
    cards = {card["id"]: card for card in http.get("/v1/models").json()["data"]}
    assert (cards["new"]["root"], cards["new"]["parent"]) == (str(folder), "tiny")
    assert http.post("/v1/unload_lora_adapter", json={"lora_name": "new"}).status_code == 200
    assert http.post("/v1/completions", json=ask).status_code == 404


def test_a_full_queue_is_503_with_a_time_to_retry(checkpoint: Path) -> None:
    body = {"model": "tiny", "prompt": "Hi", "max_tokens": 8000, "ignore_eos": True, "stream": True}
    with (
        running_worker(checkpoint, max_num_seqs=1, max_waiting=1) as small,
        small.client() as client,
        client.stream("POST", "/v1/completions", json=body) as running,
    ):
        lines = running.iter_lines()
        next(lines)
        with client.stream("POST", "/v1/completions", json=body) as waiting:
            notices = waiting.iter_lines()
            assert next(notices).startswith(": waiting")
            refused = client.post("/v1/completions", json=body)
            assert (refused.status_code, refused.json()["error"]["type"]) == (503, "overloaded_error")
            assert int(refused.headers["retry-after"]) >= 1
