"""What users of vLLM ask a server besides answers: its models, its version, its tokenizer, its figures."""

import json
import stat
from importlib.metadata import version
from pathlib import Path

import httpx
import openai
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.support.running_worker import RunningWorker, running_worker
from worker.main import bind_unix
from worker.settings import SettingsError, WorkerSettings, load_settings

TEXT = {"model": "tiny", "prompt": [5, 6, 7], "max_tokens": 4, "ignore_eos": True}


def test_each_model_is_told_by_itself(client: openai.OpenAI, http: httpx.Client) -> None:
    listed = {card.id: card for card in client.models.list()}
    assert set(listed) == {"tiny", "pirate"}
    assert all(client.models.retrieve(name) == card for name, card in listed.items())
    for name in ("nobody", "a/b", "tiny/x"):
        reply = http.get(f"/v1/models/{name}")
        error = reply.json()["error"]
        assert (reply.status_code, error["code"], error["param"]) == (404, "model_not_found", "model")
        assert repr(name) in error["message"]


def test_the_version_is_the_packages(http: httpx.Client) -> None:
    assert http.get("/version").json() == {"version": version("tiergate")}


def test_the_tokenizer_tells_of_itself(http: httpx.Client, checkpoint: Path, tmp_path: Path) -> None:
    said = json.loads((checkpoint / "tokenizer_config.json").read_text())
    told = http.get("/tokenizer_info").json()
    assert {name: told[name] for name in said} == said
    assert told["tokenizer_class"]


@pytest.mark.parametrize("path", ["/v1/models/tiny", "/version", "/tokenizer_info"])
def test_they_ask_for_the_key(checkpoint: Path, path: str) -> None:
    with running_worker(checkpoint, api_key="secret-key") as keyed, keyed.client() as client:
        assert client.get(path).status_code == 200
        assert httpx.get(f"{keyed.origin}{path}").status_code == 401


def figures(http: httpx.Client) -> dict[str, float]:
    """Samples by name and, of a histogram, bound."""
    found = {}
    for family in text_string_to_metric_families(http.get("/metrics").text):
        for sample in family.samples:
            assert sample.labels.get("engine", "0") == "0"
            found[sample.name.removeprefix("tiergate_") + sample.labels.get("le", "")] = sample.value
    return found


def test_requests_are_counted_in_vllms_histograms(http: httpx.Client) -> None:
    before = figures(http)
    for fields in (
        {},
        {"n": 3},
        {"stream": True, "max_tokens": 9},
        {"prompt": [[(31 * i + 7) % 380 for i in range(30)], [6] * 3]},
    ):
        assert http.post("/v1/completions", json=TEXT | fields).status_code == 200
    after = figures(http)
    grown = {name: value - before.get(name, 0) for name, value in after.items()}
    for name in ("prefill_time_seconds", "decode_time_seconds", "inference_time_seconds"):
        assert grown[f"request_{name}_count"] == 7 and grown[f"request_{name}_sum"] > 0
    of_parts = grown["request_prefill_time_seconds_sum"] + grown["request_decode_time_seconds_sum"]
    assert grown["request_inference_time_seconds_sum"] == pytest.approx(of_parts)
    assert (grown["request_prompt_tokens_count"], grown["request_prompt_tokens_sum"]) == (7, 3 * 5 + 30 + 3)
    assert (grown["request_prompt_tokens_bucket2.0"], grown["request_prompt_tokens_bucket5.0"]) == (0, 6)
    assert (grown["request_generation_tokens_count"], grown["request_generation_tokens_sum"]) == (7, 6 * 4 + 9)
    assert (grown["request_params_max_tokens_count"], grown["request_params_max_tokens_sum"]) == (7, 6 * 4 + 9)
    assert (grown["request_params_n_count"], grown["request_params_n_sum"]) == (4, 1 + 3 + 1 + 1)
    assert grown["request_params_n_bucket1.0"] == 3
    # Every token but each answer's last one was computed, some prompts once for several answers.
    computed = grown["iteration_tokens_total_sum"]
    assert grown["iteration_tokens_total_count"] == grown["iteration_tokens_total_bucket+Inf"] > 0
    assert 3 * 3 + 30 + 3 + 5 * 3 + 8 <= computed <= 3 * 5 + 33 + 6 * 4 + 9
    assert after["request_prompt_tokens_bucket5000.0"] == after["request_prompt_tokens_bucket+Inf"]


def test_the_cache_tells_its_size(http: httpx.Client, worker: RunningWorker) -> None:
    families = {family.name: family for family in text_string_to_metric_families(http.get("/metrics").text)}
    [sample] = families["tiergate_cache_config_info"].samples
    assert sample.value == 1
    assert sample.labels["num_gpu_blocks"] == str(worker.load()["num_blocks"])
    assert sample.labels["cache_dtype"] == "float32"


def test_a_worker_is_served_over_a_unix_socket(checkpoint: Path, tmp_path: Path) -> None:
    path = tmp_path / "worker.sock"
    bind_unix(path).close()
    # The file of one that is gone is no obstacle; that of one that serves is.
    with running_worker(checkpoint, uds=path) as worker, worker.client() as client:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        reply = client.post("/v1/completions", json=TEXT | {"stream": True})
        assert reply.text.endswith("data: [DONE]\n\n")
        # Who reaches it is on this machine.
        assert client.get("/metrics").status_code == 200
        assert client.get("/metrics", headers={"X-Forwarded-For": "1.2.3.4"}).status_code == 403
        with pytest.raises(SettingsError, match=r"--uds: .*worker.sock: is in use"):
            bind_unix(path)
    assert not path.exists()


@pytest.mark.parametrize("name", ["no-such-folder/s", "x" * 200, "taken"])
def test_a_bad_socket_stops_the_start(tmp_path: Path, name: str) -> None:
    (tmp_path / "taken").write_text("a file")
    with pytest.raises(SettingsError, match="--uds"):
        bind_unix(tmp_path / name)
    assert (tmp_path / "taken").read_text() == "a file"


def test_a_unix_socket_is_no_address_for_gateways(tmp_path: Path) -> None:
    fields = {"model": tmp_path, "uds": tmp_path / "s", "api_key": "k", "register_url": "redis://x"}
    with pytest.raises(SettingsError, match="--uds"):
        load_settings(**fields)
    assert isinstance(load_settings(**fields, url="http://proxy"), WorkerSettings)
