"""Options that several commands share."""

from typing import Annotated, Literal

import typer

Port = Annotated[int | None, typer.Option(min=0, max=65535, help="The port to listen on; 0 picks a free one.")]
LogLevel = Annotated[
    Literal["debug", "info", "warning", "error"], typer.Option(help="The least severe level that is logged.")
]
LogFormat = Annotated[
    Literal["text", "json"],
    typer.Option(
        envvar="TIERGATE_LOG_FORMAT", help="Lines for people to read, or JSON objects; both have the request's id."
    ),
]
