"""Shows and completes the rotation of the pepper, with access to the database only."""

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tiergate.admin.options import AsJson
from tiergate.admin.output import show_row, show_rows
from tiergate.commands.settings import settings_here
from tiergate.failure import Failure

if TYPE_CHECKING:
    from gateway.database import Sessions
    from gateway.domain.peppers.settling import Settled
    from gateway.peppers import Peppers

app = typer.Typer(name="pepper", help="Replace the pepper: show what still depends on an old one, and move it.")
DataDir = Annotated[
    Path | None, typer.Option(help="The data directory of a `tiergate up`; default: TIERGATE_DATA_DIR.")
]
Config = Annotated[Path | None, typer.Option(help="A TOML file; default: tiergate.toml, if it exists.")]
_KEY_COLUMNS = ("prefix", "name", "tenant_id", "last_used_at")


@app.command("status")
def show_status(data_dir: DataDir = None, config: Config = None, as_json: AsJson = False) -> None:
    """Count what depends on the current pepper, on old peppers, and on a pepper that is not configured.

    Old peppers may be removed once nothing depends on them. API keys move when they are next used; everything else is
    moved by `tiergate pepper settle`. Needs the database and the gateways' TIERGATE_KEY_PEPPER and
    TIERGATE_OLD_KEY_PEPPERS.
    """
    found = _with_database(_status, data_dir, config)
    if as_json:
        show_row(found, as_json=True)
        return
    show_rows(found["things"], as_json=False)
    if found["keys_to_move"]:
        typer.echo("\nkeys that wait for their next use, or for a pepper that is not there:")
        show_rows(found["keys_to_move"], _KEY_COLUMNS, as_json=False)
    may = "may" if found["may_remove_old"] else "may not"
    typer.echo(f"\nold peppers {may} be removed")


@app.command("settle")
def settle_command(data_dir: DataDir = None, config: Config = None, as_json: AsJson = False) -> None:
    """Seal everything that is sealed under an old pepper again, under the current one.

    Run it after all gateways have been switched to the new pepper. It may be interrupted and run again at any time,
    while gateways serve. The exit code is 1 if something cannot be read.
    """
    found = _with_database(_settle, data_dir, config)
    show_row(found, as_json=as_json)
    if found["unreadable"]:
        raise typer.Exit(1)


async def _status(sessions: "Sessions", peppers: "Peppers") -> dict[str, Any]:
    from gateway.clock import utc_now
    from gateway.domain.peppers.standing import KINDS, keys_to_move, num_under, standing_of

    now = utc_now()
    async with sessions() as session:
        standing = await standing_of(session, peppers, now=now)
        keys = await keys_to_move(session, peppers, now=now)
    things = [{"what": name, **{kind: counts[kind] for kind in KINDS}} for name, counts in standing.items()]
    rows = [
        {
            "id": str(key.id),
            "prefix": key.prefix,
            "name": key.name,
            "tenant_id": str(key.tenant_id),
            "last_used_at": None if key.last_used_at is None else key.last_used_at.isoformat(),
        }
        for key in keys
    ]
    return {"things": things, "keys_to_move": rows, "may_remove_old": num_under(standing, "old") == 0}


async def _settle(sessions: "Sessions", peppers: "Peppers") -> dict[str, Any]:
    from gateway.clock import utc_now
    from gateway.domain.peppers.settling import settle
    from tiergate.progress import Progress

    if peppers.upcoming is not None:
        raise Failure("TIERGATE_NEXT_KEY_PEPPER is set: switch all gateways to it first, then settle as they are set")
    progress = Progress("secrets moved")
    try:
        settled: Settled = await settle(sessions, peppers, now=utc_now(), on_progress=progress.show)
    finally:
        progress.end()
    return {"moved": dict(settled.moved), "unreadable": dict(settled.unreadable)}


def _with_database(
    act: "Callable[[Sessions, Peppers], Coroutine[Any, Any, dict[str, Any]]]",
    data_dir: Path | None,
    config: Path | None,
) -> dict[str, Any]:
    """Raises Failure."""
    from sqlalchemy.exc import SQLAlchemyError

    from gateway.database import check_exists, open_sessions

    settings = settings_here(config, data_dir)

    async def run() -> dict[str, Any]:
        check_exists(settings.sql_url)
        async with open_sessions(settings.sql_url, peppers=settings.peppers) as sessions:
            return await act(sessions, settings.peppers)

    try:
        return asyncio.run(run())
    except (SQLAlchemyError, OSError) as error:
        reason = str(error).splitlines()[0]
        raise Failure(
            f"TIERGATE_DATABASE_URL: {reason} (is it up, and did `tiergate migrate` run?)", exit_code=1
        ) from error
