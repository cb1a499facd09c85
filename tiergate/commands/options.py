"""Options that several commands share."""

from typing import Annotated, Literal

import typer

Port = Annotated[int | None, typer.Option(min=0, max=65535, help="Port to listen on; 0 picks a free one.")]
LogLevel = Annotated[Literal["debug", "info", "warning", "error"], typer.Option(help="How much is logged.")]
LogFormat = Annotated[
    Literal["text", "json"],
    typer.Option(envvar="TIERGATE_LOG_FORMAT", help="Lines for people, or JSON objects with the request's id."),
]
