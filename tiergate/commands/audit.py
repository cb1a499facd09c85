import asyncio
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tiergate.admin.options import AsJson
from tiergate.failure import Failure

if TYPE_CHECKING:
    from gateway.domain.audit.verification import Anchor
    from gateway.settings import GatewaySettings


def verify(
    since: Annotated[
        str | None,
        typer.Option(
            metavar="ROWS:HASH",
            help="What an earlier run printed at its end; the log must still begin with those rows.",
        ),
    ] = None,
    data_dir: Annotated[
        Path | None, typer.Option(help="The data directory of a `tiergate up`; default: TIERGATE_DATA_DIR.")
    ] = None,
    config: Annotated[Path | None, typer.Option(help="A TOML file; default: tiergate.toml, if it exists.")] = None,
    as_json: AsJson = False,
) -> None:
    """Verify that every row of the audit log is as it was written, and that none is missing or was added at the end.

    Needs the database and TIERGATE_KEY_PEPPER, as `tiergate admin-key` does. If the log does not hold, the exit code is
    1 and the first bad row is named. Keep the printed ROWS:HASH elsewhere: with --since even an older copy of the log
    is detected.
    """
    from tiergate.commands.settings import settings_here

    found = asyncio.run(_verify(settings_here(config, data_dir), _anchor(since), is_quiet=as_json))
    if as_json:
        typer.echo(json.dumps(found, indent=2))
    elif found["is_intact"]:
        erased = f"the contents of {found['num_erased']:,} were erased; " if found["num_erased"] else ""
        typer.echo(f"{found['num_rows']:,} rows hold; {erased}they end in {found['num_rows']}:{found['hash']}")
    else:
        place = "" if found["position"] is None else f"row {found['position']}: "
        typer.echo(f"the audit log does not hold: {place}{found['reason']}", err=True)
    if not found["is_intact"]:
        raise typer.Exit(1)


async def _verify(settings: "GatewaySettings", since: "Anchor | None", *, is_quiet: bool) -> dict[str, Any]:
    from sqlalchemy.exc import SQLAlchemyError

    from gateway.database import check_exists, open_sessions
    from gateway.domain.audit.verification import BrokenChain, verify
    from tiergate.progress import Progress

    progress = Progress("rows verified", is_shown=not is_quiet)
    try:
        check_exists(settings.sql_url)
        async with open_sessions(settings.sql_url) as sessions:
            end = await verify(sessions, peppers=settings.peppers, since=since, on_progress=progress.show)
    except BrokenChain as error:
        entry_id = None if error.entry_id is None else str(error.entry_id)
        return {"is_intact": False, "position": error.position, "id": entry_id, "reason": str(error)}
    except (SQLAlchemyError, OSError) as error:
        raise Failure(
            f"TIERGATE_DATABASE_URL: {str(error).splitlines()[0]} (is it up, and did `tiergate migrate` run?)",
            exit_code=1,
        ) from error
    finally:
        progress.end()
    return {"is_intact": True, "num_rows": end.num_rows, "num_erased": end.num_erased, "hash": end.hash.hex()}


def _anchor(text: str | None) -> "Anchor | None":
    from gateway.domain.audit.chain import GENESIS
    from gateway.domain.audit.verification import Anchor

    if text is None:
        return None
    rows, _, digest = text.partition(":")
    anchor: Anchor | None
    try:
        anchor = Anchor(int(rows), bytes.fromhex(digest))
    except ValueError:
        anchor = None
    if anchor is None or anchor.num_rows < 1 or len(anchor.hash) != len(GENESIS):
        raise Failure(f"--since {text!r}: give ROWS:HASH, as `tiergate audit verify` prints them")
    return anchor
