from pathlib import Path
from typing import Annotated

import typer

from tiergate.commands.options import LogLevel, Port


def gateway(
    config: Annotated[Path | None, typer.Option(help="A TOML file; default: tiergate.toml, if there.")] = None,
    host: Annotated[
        str | None, typer.Option(help="Address to listen on; default: TIERGATE_HOST, else 127.0.0.1.")
    ] = None,
    port: Port = None,
    log_level: LogLevel = "info",
) -> None:
    """Serve the OpenAI-compatible API, the admin API and the dashboard."""
    from tiergate.commands.logs import start_logging
    from tiergate.commands.settings import gateway_settings

    start_logging(log_level)
    given = {name: value for name, value in (("host", host), ("port", port)) if value is not None}
    settings = gateway_settings(config, **given)
    # After the settings: a bad one is told before everything is loaded.
    from gateway.main import run

    raise typer.Exit(run(settings))
