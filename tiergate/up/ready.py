"""What `up` says when everything runs: to people as a block, to scripts as JSON."""

from pathlib import Path

import msgspec

from tiergate.failure import Failure
from tiergate.up.data_dir import write_private
from tiergate.up.secrets import Secrets


class Ready(msgspec.Struct, kw_only=True, frozen=True):
    """The documented fields of `--json-ready FILE`. `base_url` is what OpenAI's clients take, `/v1` included."""

    base_url: str
    admin_key: str
    enterprise_key: str
    free_key: str
    dashboard_url: str


def make_ready(origin: str, kept: Secrets) -> Ready:
    return Ready(
        base_url=f"{origin}/v1",
        admin_key=kept.admin_key,
        enterprise_key=kept.enterprise_key,
        free_key=kept.free_key,
        dashboard_url=f"{origin}/dashboard",
    )


def ready_block(ready: Ready, *, after_s: float) -> str:
    body = '{"model": "auto", "messages": [{"role": "user", "content": "What is the capital of France?"}]}'
    return f"""
tiergate is ready ({after_s:.1f} s)

  base URL        {ready.base_url}
  dashboard       {ready.dashboard_url}
  admin key       {ready.admin_key}
  enterprise key  {ready.enterprise_key}   (tenant acme)
  free key        {ready.free_key}   (tenant hobby)

  curl {ready.base_url}/chat/completions \\
    -H 'Authorization: Bearer {ready.enterprise_key}' -H 'Content-Type: application/json' \\
    -d '{body}'

Ctrl-C stops everything.
"""


def write_ready(path: Path, ready: Ready) -> None:
    """At once and readable by its owner only: it holds keys. Raises Failure."""
    try:
        write_private(path, msgspec.json.encode(ready) + b"\n")
    except OSError as error:
        raise Failure(f"--json-ready {path} cannot be written: {error.strerror}") from error
