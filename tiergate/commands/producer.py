from pathlib import Path
from typing import Annotated

import typer

from tiergate.commands.options import LogFormat, LogLevel
from tiergate.failure import Failure


def producer(
    config: Annotated[Path | None, typer.Option(help="A TOML file; default: tiergate.toml, if it exists.")] = None,
    log_level: LogLevel = "info",
    log_format: LogFormat = "text",
) -> None:
    """Move usage events from the outboxes on this machine into Kafka."""
    from tiergate.commands.logs import start_logging
    from tiergate.commands.settings import gateway_settings

    start_logging(log_level, log_format)
    settings = gateway_settings(config)
    from gateway.settings import ConfigError

    try:
        from gateway.metering.kafka.library import check_library

        check_library()
        from gateway.metering.kafka.producer import run

        raise typer.Exit(run(settings))
    except ConfigError as error:
        raise Failure(str(error)) from error
