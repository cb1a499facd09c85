"""The gateway's settings for a command, or a one-line failure that says what is wrong with them."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from tiergate.failure import Failure

if TYPE_CHECKING:
    from gateway.settings import GatewaySettings


def gateway_settings(config: Path | None, **overrides: Any) -> "GatewaySettings":
    """Raises Failure naming the field."""
    from gateway.settings import ConfigError, load_settings

    try:
        return load_settings(config, **overrides)
    except ConfigError as error:
        raise Failure(str(error)) from error


def settings_here(config: Path | None, data_dir: Path | None) -> "GatewaySettings":
    """The settings of the installation in `data_dir`, if one is given. Raises Failure naming the field."""
    given = {"data_dir": data_dir, **_kept_by_up(data_dir)} if data_dir is not None else {}
    return gateway_settings(config, **given)


def _kept_by_up(data_dir: Path) -> dict[str, str]:
    """The pepper that `tiergate up` keeps there and, whatever the environment says, the database that belongs to it."""
    from tiergate.up.secrets import KEYS_FILE, load_secrets

    # `load_secrets` would create a missing file.
    if not (data_dir / KEYS_FILE).is_file():
        return {}
    return {"key_pepper": load_secrets(data_dir).key_pepper, "database_url": ""}
