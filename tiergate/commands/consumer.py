from pathlib import Path
from typing import Annotated

import typer

from tiergate.commands.options import LogFormat, LogLevel


def consumer(
    config: Annotated[Path | None, typer.Option(help="A TOML file; default: tiergate.toml, if there.")] = None,
    log_level: LogLevel = "info",
    log_format: LogFormat = "text",
) -> None:
    """Move usage events from the outboxes into ClickHouse."""
    from tiergate.commands.logs import start_logging
    from tiergate.commands.settings import gateway_settings

    start_logging(log_level, log_format)
    settings = gateway_settings(config)
    from gateway.metering.consumer import run

    raise typer.Exit(run(settings))
