"""Secrets that `up` makes once and keeps in `keys.json`, a file of mode 0600."""

import secrets
from pathlib import Path

import msgspec

from tiergate.failure import Failure
from tiergate.up.data_dir import write_private

KEYS_FILE = "keys.json"


class Secrets(msgspec.Struct, kw_only=True, frozen=True):
    """The tenants' keys are empty until the gateway has made them.

    clickhouse_password is missing in a file of an earlier version; `load_secrets` then makes one.
    """

    worker_key: str
    key_pepper: str
    admin_key: str
    valkey_password: str
    clickhouse_password: str = ""
    enterprise_key: str = ""
    free_key: str = ""


def load_secrets(data_dir: Path) -> Secrets:
    """Read the file, or make it or the secret that it lacks.

    Raises Failure if the file cannot be read, and leaves it unchanged.
    """
    path = data_dir / KEYS_FILE
    try:
        kept = msgspec.json.decode(path.read_bytes(), type=Secrets)
    except FileNotFoundError:
        made = _make_secrets()
        save_secrets(data_dir, made)
        return made
    except (OSError, msgspec.DecodeError) as error:
        raise Failure(f"{path} cannot be read: {error}") from error
    if not kept.clickhouse_password:
        kept = msgspec.structs.replace(kept, clickhouse_password=secrets.token_urlsafe(32))
        save_secrets(data_dir, kept)
    return kept


def save_secrets(data_dir: Path, kept: Secrets) -> None:
    write_private(data_dir / KEYS_FILE, msgspec.json.format(msgspec.json.encode(kept), indent=2) + b"\n")


def _make_secrets() -> Secrets:
    return Secrets(
        worker_key=secrets.token_urlsafe(32),
        key_pepper=secrets.token_urlsafe(32),
        admin_key=f"tg-{secrets.token_hex(4)}-{secrets.token_urlsafe(32)}",
        valkey_password=secrets.token_urlsafe(32),
        clickhouse_password=secrets.token_urlsafe(32),
    )
