"""What the processes log: JSON where it is asked for, with the request's id, and never a prompt or a secret."""

import io
import json
import logging
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import copy_context
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway import log_context
from tests.support.checkpoints import make_tiny_checkpoint
from tests.support.cli import refusal
from tests.support.gateways import copy_database
from tests.support.platform import clean_environment, stop, wait_until
from tests.support.ports import free_port
from tests.support.valkey import ValkeyProcess
from tiergate.commands import logs

MARK = "xyzzy"
"""Part of everything that no log may hold."""
PROMPT = f"my {MARK} prompt"
ADMIN_KEY = f"tg-adminkey-{MARK}-" + "a" * 40
SECRETS = {
    "TIERGATE_KEY_PEPPER": f"pepper-{MARK}-pepper",
    "TIERGATE_BOOTSTRAP_ADMIN_KEY": ADMIN_KEY,
    "TIERGATE_WORKER_KEY": f"worker-{MARK}-key",
    "TIERGATE_METRICS_KEY": f"metrics-{MARK}-key",
    "TIERGATE_CLICKHOUSE_URL": f"http://tiergate:{MARK}@127.0.0.1:9/tiergate",
}
DEADLINE_S = 60


class Log:
    def __init__(self, path: Path, process: "subprocess.Popen[bytes]") -> None:
        self.path = path
        self.process = process

    @property
    def text(self) -> str:
        return self.path.read_text()

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.text.splitlines()]

    def said(self, text: str) -> bool:
        assert self.process.poll() is None, self.text
        return text in self.text


@pytest.fixture
def valkey(tmp_path: Path) -> Iterator[ValkeyProcess]:
    process = ValkeyProcess(tmp_path)
    process.start()
    yield process
    process.stop()


@contextmanager
def logging_process(path: Path, *arguments: str, **variables: str) -> Iterator[Log]:
    env = {**clean_environment(), **SECRETS, "TIERGATE_LOG_FORMAT": "json", **variables}
    command = [sys.executable, "-m", "tiergate", *arguments, "--log-level", "debug"]
    with path.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, env=env, cwd=path.parent)
    try:
        yield Log(path, process)
    finally:
        stop(process)


def test_no_log_of_any_process_holds_a_prompt_or_a_secret(tmp_path: Path, valkey: ValkeyProcess) -> None:
    model, (gateway_port, worker_port) = make_tiny_checkpoint(tmp_path / "model", seed=3), (free_port(), free_port())
    data_dir, origin = tmp_path / "data", f"http://127.0.0.1:{gateway_port}"
    data_dir.mkdir()
    copy_database(data_dir / "tiergate.db")
    member = f'members = [{{ url = "http://127.0.0.1:{worker_port}" }}]'
    (tmp_path / "tiergate.toml").write_text(f'[pools.small]\nmodel = "m"\ncontext_window = 512\n{member}\n')
    away = f"redis://:{MARK}@127.0.0.1:9/0"
    worker = ("worker", "--model", str(model), "--name", "m", "--pool", "small", "--port", str(worker_port))
    places = {"TIERGATE_DATA_DIR": str(data_dir), "TIERGATE_REDIS_URL": valkey.url}
    with (
        logging_process(tmp_path / "worker.log", *worker, TIERGATE_WORKER_REGISTER=away) as worker_log,
        logging_process(tmp_path / "gateway.log", "gateway", "--port", str(gateway_port), **places) as gateway_log,
        logging_process(tmp_path / "consumer.log", "consumer", **places) as consumer_log,
        logging_process(tmp_path / "cut.log", "gateway", "--port", "0", **places | {"TIERGATE_REDIS_URL": away}) as cut,
        httpx.Client(base_url=origin, timeout=DEADLINE_S) as http,
    ):
        wait_until(lambda: worker_log.said("Redis is away"), deadline_s=DEADLINE_S)
        wait_until(lambda: cut.said("Redis is away"), deadline_s=DEADLINE_S)
        wait_until(lambda: _is_ready(http, gateway_log), deadline_s=DEADLINE_S)
        request_id = _ask_everything(http)
        wait_until(lambda: request_id in gateway_log.text, deadline_s=DEADLINE_S)
        wait_until(lambda: consumer_log.said("ClickHouse takes no usage"), deadline_s=DEADLINE_S)
    for log in (worker_log, gateway_log, consumer_log, cut):
        assert log.text and MARK not in log.text
        assert all({"time", "level", "logger", "message"} <= line.keys() for line in log.lines())
    [line] = [line for line in gateway_log.lines() if line.get("request_id") == request_id]
    assert line["logger"] == "gateway.access" and line["message"] == "/v1/chat/completions 200 small m enterprise"
    assert line["tenant_id"].count("-") == 4


def _is_ready(http: httpx.Client, log: Log) -> bool:
    assert log.process.poll() is None, log.text
    try:
        return http.get("/ready").status_code == 200
    except httpx.HTTPError:
        return False


def _ask_everything(http: httpx.Client) -> str:
    """What succeeds and what does not, always with the prompt and a key; the id of what succeeded."""
    admin = {"Authorization": f"Bearer {ADMIN_KEY}"}
    tenant = http.post("/admin/v1/tenants", json={"name": "t", "tier": "enterprise"}, headers=admin).json()
    made = {"tenant_id": tenant["id"], "name": "k", "scopes": ["inference"]}
    key = http.post("/admin/v1/keys", json=made, headers=admin).json()["key"]
    headers = {"Authorization": f"Bearer {key}"}
    chat = {"model": "small", "messages": [{"role": "user", "content": PROMPT}], "max_tokens": 3}
    text = {"model": "small", "prompt": PROMPT, "max_tokens": 3}
    for bad in (
        chat | {"n": PROMPT},
        chat | {PROMPT: 1},
        chat | {"model": PROMPT},
        chat | {"max_tokens": 100_000},
        chat | {"messages": [{"role": PROMPT, "content": "x"}]},
        {"model": "small", "messages": PROMPT},
    ):
        assert 400 <= http.post("/v1/chat/completions", json=bad, headers=headers).status_code < 500
    for path in ("/v1/chat/completions", "/v1/tokenize", "/v1/route", "/admin/v1/tenants"):
        reply = http.post(path, content=PROMPT, headers=headers | {"content-type": "application/json"})
        assert 400 <= reply.status_code < 500
    assert http.post("/v1/chat/completions", json=chat, headers={"Authorization": f"Bearer {MARK}"}).status_code == 401
    assert http.post("/v1/completions", json=text, headers=headers).status_code == 200
    assert http.post("/v1/embeddings", json={"model": "small", "input": PROMPT}, headers=headers).status_code == 200
    assert http.post("/v1/chat/completions", json=chat | {"stream": True}, headers=headers).status_code == 200
    reply = http.post("/v1/chat/completions", json=chat, headers=headers)
    assert reply.status_code == 200, reply.text
    return reply.headers["x-request-id"]


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_a_failure_within_a_request_tells_its_place_and_quotes_nobody(log_format: str) -> None:
    assert PROMPT in _printed(log_format, {})
    printed = _printed(log_format, {"request_id": "0190-id", "tenant_id": "t"})
    assert MARK not in printed and "0190-id" in printed
    assert "builtins.KeyError" in printed and "builtins.ValueError" in printed and "in _fail" in printed


def _printed(log_format: str, context: Mapping[str, str]) -> str:
    formatter = (logs._Json if log_format == "json" else logs._Text)(lambda: context)
    handler = logging.StreamHandler(io.StringIO())
    handler.setFormatter(formatter)
    logger = logging.Logger("gateway.test")
    logger.addHandler(handler)
    try:
        _fail()
    except ValueError as error:
        logger.error("a request failed", exc_info=error)
    printed: str = handler.stream.getvalue()
    return printed


def _fail() -> None:
    try:
        {}[PROMPT]
    except KeyError as error:
        raise ValueError(PROMPT) from error


def test_a_line_within_a_request_names_it() -> None:
    def within() -> None:
        log_context.note_request("0190-id")
        log_context.note_tenant("tenant-1")
        assert log_context.current() == {"request_id": "0190-id", "tenant_id": "tenant-1"}

    copy_context().run(within)
    assert log_context.current() == {}


def test_another_format_is_refused_in_one_line() -> None:
    line = refusal("consumer", env={"TIERGATE_LOG_FORMAT": "xml"})
    assert "xml" in line and "json" in line
