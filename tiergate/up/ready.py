"""The announcement that everything is ready: a block of text for people, JSON for scripts."""

import shlex
from pathlib import Path

import msgspec

from tiergate.failure import Failure
from tiergate.up.data_dir import write_private
from tiergate.up.secrets import Secrets


class Ready(msgspec.Struct, kw_only=True, frozen=True):
    """The documented fields of `--json-ready FILE`. `base_url` includes `/v1`, as OpenAI's clients require."""

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


def ready_block(ready: Ready, keys_file: Path, *, after_s: float, shows_keys: bool) -> str:
    """shows_keys: true for a terminal. Logs are kept, copied and read by others, so they only name the keys' file."""
    body = '{"model": "auto", "messages": [{"role": "user", "content": "What is the capital of France?"}]}'
    keys = _keys(ready) if shows_keys else f"  keys            {keys_file} (for its owner only)"
    # Shell code that reads the key from the file's line `"enterprise_key": "..."`.
    read_key = f'$(sed -n \'s/.*"enterprise_key": "\\(.*\\)".*/\\1/p\' {shlex.quote(str(keys_file))})'
    return f"""
tiergate is ready ({after_s:.1f} s)

  base URL        {ready.base_url}
  dashboard       {ready.dashboard_url}
{keys}

  curl {ready.base_url}/chat/completions \\
    -H "Authorization: Bearer {ready.enterprise_key if shows_keys else read_key}" \\
    -H 'Content-Type: application/json' \\
    -d '{body}'

Ctrl-C stops everything.
"""


def _keys(ready: Ready) -> str:
    return f"""  admin key       {ready.admin_key}
  enterprise key  {ready.enterprise_key}   (tenant acme)
  free key        {ready.free_key}   (tenant hobby)"""


def write_ready(path: Path, ready: Ready) -> None:
    """Write the file atomically and readable by its owner only, since it holds keys. Raises Failure."""
    try:
        write_private(path, msgspec.json.encode(ready) + b"\n")
    except OSError as error:
        raise Failure(f"--json-ready {path} cannot be written: {error.strerror}") from error
