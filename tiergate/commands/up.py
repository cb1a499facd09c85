from pathlib import Path
from typing import Annotated

import typer


def up(
    data_dir: Annotated[Path, typer.Option(help="The directory where everything is kept, including keys.")] = Path(
        ".tiergate"
    ),
    port: Annotated[int, typer.Option(min=1, max=65535, help="The gateway's port.")] = 8080,
    small: Annotated[Path | None, typer.Option(help="The checkpoint of the small pool; default: the demo's.")] = None,
    large: Annotated[Path | None, typer.Option(help="The checkpoint of the large pool; default: the demo's.")] = None,
    json_ready: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write URLs and keys to this file as JSON once everything is ready."),
    ] = None,
) -> None:
    """Run the whole platform on this machine until Ctrl-C."""
    from tiergate.up.run import Options, run

    raise typer.Exit(run(Options(data_dir=data_dir, port=port, small=small, large=large, json_ready=json_ready)))
