"""`tiergate migrate --plan`, for people and for scripts."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import typer

from tiergate.admin.output import show_row, show_rows
from tiergate.failure import Failure

if TYPE_CHECKING:
    from migrations.plan import Plan, Step


def show_plan(database_url: str, *, as_json: bool) -> None:
    """Raises Failure."""
    from sqlalchemy.exc import SQLAlchemyError

    from migrations.plan import UnknownRevision, plan

    try:
        found = plan(database_url)
    except UnknownRevision as error:
        raise Failure(str(error), exit_code=1) from error
    except (SQLAlchemyError, OSError) as error:
        raise Failure(f"TIERGATE_DATABASE_URL: {str(error).splitlines()[0]} (is it up?)", exit_code=1) from error
    steps = [_row(step) for step in found.steps]
    if as_json:
        whole = {"at": found.at, "locks": found.locks, "seconds": found.seconds, "revisions": steps}
        show_row(whole | {"is_safe": _is_safe(found)}, as_json=True)
    elif not steps:
        typer.echo(f"the database is at revision {found.at}, the newest: there is nothing to do")
    else:
        show_rows([row | {"kind": _kind(row)} for row in steps], ("revision", "kind", "seconds", "what"), as_json=False)
        typer.echo("\n" + "\n".join(_told(found)))


def _row(step: "Step") -> dict[str, Any]:
    return {
        "revision": step.revision,
        "what": step.what,
        "is_additive": step.is_additive,
        "old_gateways": step.effects.old_gateways,
        "locks": step.effects.locks,
        "rewrites": dict(step.rows),
        "seconds": step.seconds,
        "note": step.effects.note,
    }


def _kind(row: dict[str, Any]) -> str:
    if row["old_gateways"] != "serve":
        return str(row["old_gateways"])
    return "additive" if row["is_additive"] else "rewrites " + ", ".join(row["rewrites"])


def _is_safe(found: "Plan") -> bool:
    """Whether running gateways keep serving both requests and changes."""
    return found.at is None or all(step.is_additive for step in found.steps)


def _told(found: "Plan") -> Iterator[str]:
    if found.at is None:
        yield "the database is new: no gateway runs on it"
        return
    yield f"from revision {found.at}, in one transaction of about {max(1, found.seconds)} s"
    if found.locks:
        yield f"meanwhile PostgreSQL lets nobody read {', '.join(found.locks)}: known keys keep working, others wait"
    for step in found.steps:
        if step.effects.note:
            yield f"{step.revision}: {step.effects.note}"
    if any(step.effects.old_gateways != "serve" for step in found.steps):
        yield "gateways of the old version serve requests, but changes through them fail: replace them soon after"
    else:
        yield "gateways of the old version go on as before: replace them one by one after it"
