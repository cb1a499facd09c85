import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tiergate.commands.options import LogFormat, LogLevel, Port
from tiergate.failure import Failure

if TYPE_CHECKING:
    from gateway.settings import GatewaySettings


def gateway(
    config: Annotated[Path | None, typer.Option(help="A TOML file; default: tiergate.toml, if it exists.")] = None,
    host: Annotated[
        str | None, typer.Option(help="The address to listen on; default: TIERGATE_HOST, otherwise 127.0.0.1.")
    ] = None,
    port: Port = None,
    processes: Annotated[
        int | None,
        typer.Option(min=1, max=256, help="The number of serving processes, each of which uses a core; default: 1."),
    ] = None,
    log_level: LogLevel = "info",
    log_format: LogFormat = "text",
    inherited: Annotated[str | None, typer.Option(hidden=True)] = None,
) -> None:
    """Serve the OpenAI-compatible API, the admin API and the dashboard.

    With several processes, SIGHUP replaces them one by one without refusing a connection.
    """
    from gateway.log_context import current
    from tiergate.commands.logs import start_logging
    from tiergate.commands.settings import gateway_settings

    start_logging(log_level, log_format, context=current)
    logs = {"log-level": log_level, "log-format": log_format}
    options = {"host": host, "port": port, "processes": processes}
    given = {name: value for name, value in options.items() if value is not None}
    settings = gateway_settings(config, **given)
    if inherited is None and settings.processes > 1:
        raise typer.Exit(_run_parent(settings, given | logs | ({"config": config} if config else {})))
    # Imported after the settings are read, so that a bad one is reported before everything is loaded.
    from gateway.main import run
    from gateway.processes.inheritance import Inherited

    raise typer.Exit(run(settings, inherited=Inherited.parse(inherited) if inherited is not None else None))


def _run_parent(settings: "GatewaySettings", options: Mapping[str, object]) -> int:
    """The child processes are started with the parent's options."""
    from gateway.processes.parent import run_parent
    from gateway.settings import ConfigError

    command = [sys.executable, "-m", "tiergate", "gateway", *(f"--{name}={value}" for name, value in options.items())]
    try:
        return run_parent(settings, command)
    except ConfigError as error:
        raise Failure(str(error)) from error
