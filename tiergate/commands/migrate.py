import json
from typing import Annotated

import typer

from tiergate.admin.options import AsJson
from tiergate.commands.migration_plan import show_plan
from tiergate.commands.options import LogFormat


def migrate(
    database_url: Annotated[
        str | None,
        typer.Option(help="SQLAlchemy URL; default: TIERGATE_DATABASE_URL, otherwise SQLite in the data directory."),
    ] = None,
    is_plan: Annotated[
        bool, typer.Option("--plan", help="Show what would run and how it affects running gateways; change nothing.")
    ] = False,
    log_format: LogFormat = "text",
    as_json: AsJson = False,
) -> None:
    """Migrate the relational database to the newest revision."""
    from gateway.private_folder import make_private
    from tiergate.commands.logs import start_logging
    from tiergate.commands.settings import gateway_settings
    from tiergate.failure import Failure

    start_logging(log_format=log_format)
    settings = gateway_settings(None, **({"database_url": database_url} if database_url else {}))
    if is_plan:
        show_plan(settings.sql_url, as_json=as_json)
        return
    try:
        make_private(settings.data_dir)
    except OSError as error:
        raise Failure(f"TIERGATE_DATA_DIR: cannot use {settings.data_dir}: {error.strerror}") from error
    from sqlalchemy.exc import SQLAlchemyError

    from migrations.run import migrate as upgrade

    try:
        applied = upgrade(settings.sql_url)
    except (SQLAlchemyError, OSError) as error:
        raise Failure(f"cannot migrate the database: {str(error).splitlines()[0]}", exit_code=1) from error
    if as_json:
        typer.echo(json.dumps({"applied": applied}))
    else:
        typer.echo(f"revisions applied: {', '.join(applied)}" if applied else "the database is at the newest revision")
