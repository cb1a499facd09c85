import asyncio
import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from tiergate.admin.options import AsJson
from tiergate.failure import Failure


def doctor(
    data_dir: Annotated[
        Path | None, typer.Option(help="The data directory of a `tiergate up`; default: TIERGATE_DATA_DIR.")
    ] = None,
    config: Annotated[Path | None, typer.Option(help="A TOML file; default: tiergate.toml, if it exists.")] = None,
    as_json: AsJson = False,
) -> None:
    """List the problems of this installation, each with its remedy.

    Run it where the gateway runs, with the same environment. The exit code is 1 if there is an error, and 0 if there
    are only warnings.
    """
    from gateway.clock import utc_now
    from tiergate.commands.settings import settings_here
    from tiergate.doctor.examination import examine
    from tiergate.doctor.findings import error

    try:
        settings = settings_here(config, data_dir)
        found = asyncio.run(examine(settings, config, now=utc_now()))
    except Failure as problem:
        # Without settings nothing else can be examined.
        found = [error("configuration", str(problem), "correct it; docs/configuration.md lists all settings")]
    if as_json:
        typer.echo(json.dumps([asdict(each) for each in found], indent=2))
    else:
        for each in found:
            typer.echo(f"{each.severity}: {each.what} [{each.name}]\n    {each.todo}")
        typer.echo("" if found else "nothing is wrong", nl=not found)
    if any(each.severity == "error" for each in found):
        raise typer.Exit(1)
