"""`tiergate up`, and a tenant's adapter by the command line: uploaded for both models, used, replaced and deleted."""

import json
from pathlib import Path

import openai
import pytest

from tests.support.cli import tiergate
from tests.support.platform import Platform, wait_until

DEMO = Path(__file__).parents[2] / "demo" / "adapters"
SMALL, LARGE = "tiergate-demo-small", "tiergate-demo-large"


def run(platform: Platform, *arguments: str) -> str:
    env = {"TIERGATE_BASE_URL": platform.base_url, "TIERGATE_ADMIN_KEY": platform.admin_key}
    ended = tiergate("adapter", *arguments, env=env)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def ask(client: openai.OpenAI, model: str) -> tuple[str | None, str | None]:
    """The answer, and the pool that gave it."""
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    raw = client.chat.completions.with_raw_response.create(
        model=model,
        messages=messages,  # type: ignore[arg-type]
        temperature=0,
    )
    return raw.parse().choices[0].message.content, raw.headers.get("x-tiergate-pool")


def test_an_uploaded_adapter_answers_as_the_same_one_that_workers_were_started_with(
    platform: Platform, client: openai.OpenAI
) -> None:
    for model, pool in ((SMALL, "small"), (LARGE, "large")):
        made = json.loads(
            run(
                platform,
                "upload",
                str(DEMO / pool / "pirate"),
                "--name=ours",
                "--tenant=acme",
                "--model",
                model,
                "--json",
            )
        )
    assert {name: each["status"] for name, each in made["details"].items()} == {SMALL: "ready", LARGE: "ready"}
    assert ask(client, "ours") == ask(client, "pirate")
    assert "ours" in [model.id for model in client.models.list()]
    with openai.OpenAI(base_url=platform.base_url, api_key=platform.free_key, max_retries=0) as stranger:
        with pytest.raises(openai.NotFoundError):
            ask(stranger, "ours")
        assert "ours" not in [model.id for model in stranger.models.list()]
    pirate, support = ask(client, "pirate"), ask(client, "support")
    assert pirate[0] != support[0]
    for model, pool in ((SMALL, "small"), (LARGE, "large")):
        folder = str(DEMO / pool / "support")
        run(platform, "upload", folder, "--name=ours", "--tenant=acme", "--model", model, "--replace")
    assert ask(client, "ours") == support
    run(platform, "delete", made["id"])
    with pytest.raises(openai.NotFoundError):
        ask(client, "ours")
    assert ask(client, "pirate") == pirate
    with platform.admin() as admin:
        wait_until(lambda: not _stored_at_workers(admin.get("/workers").json()["data"]), deadline_s=30)


def _stored_at_workers(workers: list[dict[str, dict[str, list[str]]]]) -> list[str]:
    return [name for worker in workers for name in worker["load"]["adapters"] if name.startswith("sha256:")]
