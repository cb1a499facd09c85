import asyncio
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tiergate.admin.options import AsJson
from tiergate.failure import Failure

if TYPE_CHECKING:
    from gateway.settings import GatewaySettings


def admin_key(
    name: Annotated[str, typer.Option(help="What the key is for.")] = "admin-key",
    data_dir: Annotated[
        Path | None, typer.Option(help="The data directory of a `tiergate up`; default: TIERGATE_DATA_DIR.")
    ] = None,
    config: Annotated[Path | None, typer.Option(help="A TOML file; default: tiergate.toml, if it exists.")] = None,
    as_json: AsJson = False,
) -> None:
    """Make a platform-admin key with access to the database only, for when no other key is left or known.

    The key is shown only once. The command needs TIERGATE_KEY_PEPPER and, unless the database is SQLite in the data
    directory, TIERGATE_DATABASE_URL. In a data directory of `tiergate up` it finds the pepper itself.
    """
    from tiergate.commands.settings import settings_here

    settings = settings_here(config, data_dir)
    made = asyncio.run(_make(settings, _checked(name)))
    typer.echo(json.dumps(made, indent=2) if as_json else made["key"])


def _checked(name: str) -> str:
    from pydantic import TypeAdapter, ValidationError

    from gateway.admin.names import Name

    try:
        return str(TypeAdapter(Name).validate_python(name))
    except ValidationError as error:
        raise Failure(f"--name: {error.errors()[0]['msg']}") from error


async def _make(settings: "GatewaySettings", name: str) -> dict[str, Any]:
    from sqlalchemy.exc import SQLAlchemyError

    from gateway.clock import utc_now
    from gateway.database import check_exists, open_sessions
    from gateway.domain.keys.service import make_admin_key

    try:
        check_exists(settings.sql_url)
        async with open_sessions(settings.sql_url, peppers=settings.peppers) as sessions:
            key, secret = await make_admin_key(sessions, name=name, pepper=settings.peppers.current, now=utc_now())
    except (SQLAlchemyError, OSError) as error:
        reason = str(error).splitlines()[0]
        raise Failure(
            f"TIERGATE_DATABASE_URL: {reason} (is it up, and did `tiergate migrate` run?)", exit_code=1
        ) from error
    return {"id": str(key.id), "tenant_id": str(key.tenant_id), "name": key.name, "key": secret}
