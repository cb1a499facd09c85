"""Options that several commands share."""

from typing import Annotated, Literal

import typer

Port = Annotated[int | None, typer.Option(min=0, max=65535, help="Port to listen on; 0 picks a free one.")]
LogLevel = Annotated[Literal["debug", "info", "warning", "error"], typer.Option(help="How much is logged.")]
