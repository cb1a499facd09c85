"""The gateway's settings for a command, or the one line that says what is wrong with them."""

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
