from pathlib import Path
from typing import Annotated

import typer

from tiergate.commands.options import LogLevel


def clickhouse(
    data_dir: Annotated[Path, typer.Option(help="Directory of the engine; one process at a time.")] = Path(
        ".tiergate/clickhouse"
    ),
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port on 127.0.0.1.")] = 8123,
    log_level: LogLevel = "info",
) -> None:
    """Serve ClickHouse's engine on loopback, over its HTTP interface."""
    from tiergate.commands.logs import start_logging
    from tiergate.embedded.clickhouse import run

    start_logging(log_level)
    raise typer.Exit(run(data_dir, port))
