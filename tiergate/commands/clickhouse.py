import os
from pathlib import Path
from typing import Annotated

import typer

from tiergate.commands.options import LogFormat, LogLevel


def clickhouse(
    data_dir: Annotated[
        Path, typer.Option(help="The engine's directory; only one process can use it at a time.")
    ] = Path(".tiergate/clickhouse"),
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port on 127.0.0.1.")] = 8123,
    log_level: LogLevel = "info",
    log_format: LogFormat = "text",
) -> None:
    """Serve ClickHouse's engine on loopback, over its HTTP interface.

    Clients log in as user `tiergate`, with the password in TIERGATE_CLICKHOUSE_PASSWORD.
    """
    from tiergate.commands.logs import start_logging
    from tiergate.failure import Failure

    # Not an option: every user of the machine can read a process's arguments.
    password = os.environ.get("TIERGATE_CLICKHOUSE_PASSWORD")
    if not password:
        raise Failure("TIERGATE_CLICKHOUSE_PASSWORD: set the password that clients have to send")
    from tiergate.embedded.clickhouse import run

    start_logging(log_level, log_format)
    raise typer.Exit(run(data_dir, port, password=password))
