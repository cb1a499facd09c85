import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tiergate.admin.options import DEFAULT_BASE_URL, AdminKey, AsJson, BaseUrl, connect, tenant_id
from tiergate.admin.output import show_row, show_rows
from tiergate.failure import Failure

if TYPE_CHECKING:
    from tiergate.admin.client import AdminClient

_POLL_S = 1.0


def erase(
    tenant: Annotated[str | None, typer.Argument(help="The tenant's name or id.")] = None,
    user: Annotated[
        str | None, typer.Option(help="Erase only this end user of the tenant (the `user` of requests).")
    ] = None,
    is_sure: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    waits: Annotated[bool, typer.Option("--wait/--no-wait", help="Wait until the erasure has finished.")] = True,
    verify: Annotated[
        str | None,
        typer.Option(metavar="ID", help="Erase nothing; search every store again after the erasure with this id."),
    ] = None,
    word: Annotated[
        list[str] | None,
        typer.Option("--word", help="With --verify: also search all texts for this word; may be repeated."),
    ] = None,
    base_url: BaseUrl = DEFAULT_BASE_URL,
    admin_key: AdminKey = "",
    as_json: AsJson = False,
) -> None:
    """Erase a tenant, or one of its end users, from every store for good.

    Requests are refused at once. The gateways do the rest, and resume after a crash. With --verify the exit code is 1
    if something was found, a store could not be searched, or the report does not match its seal.
    """
    with connect(base_url, admin_key) as client:
        if verify is not None:
            _verify(client, verify, user, word or [], as_json=as_json)
            return
        if tenant is None:
            raise Failure("name the tenant, or an erasure to --verify")
        draft = {"tenant_id": tenant_id(client, tenant)} | ({} if user is None else {"user_id": user})
        whom = f"the tenant {tenant}" if user is None else f"the end user {user} of {tenant}"
        if not is_sure and not typer.confirm(f"Erase {whom} with all data? This cannot be taken back."):
            raise typer.Abort
        begun = client.post("/erasures", draft)
        _show(_finished(client, begun, is_quiet=as_json) if waits else begun, as_json=as_json)


def _show(erasure: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        show_row(erasure, as_json=True)
        return
    show_row({name: value for name, value in erasure.items() if name != "steps"}, as_json=False)
    for step in erasure["steps"]:
        counts = ", ".join(f"{number} {name.replace('_', ' ')}" for name, number in step["counts"].items())
        typer.echo(f"  {step['name']:10}  {counts or 'done'}")


def _finished(client: "AdminClient", erasure: dict[str, Any], *, is_quiet: bool) -> dict[str, Any]:
    from rich.console import Console

    with Console(stderr=True, quiet=is_quiet).status("erasing") as status:
        while erasure["status"] == "running":
            time.sleep(_POLL_S)
            erasure = client.get(f"/erasures/{erasure['id']}")
            waiting = f", waits for {erasure['waits_for']}" if erasure["waits_for"] else ""
            status.update(f"erasing: {len(erasure['steps'])} steps done{waiting}")
    return erasure


def _verify(client: "AdminClient", erasure_id: str, user: str | None, words: list[str], *, as_json: bool) -> None:
    found = client.post(f"/erasures/{erasure_id}/verification", {"user_id": user, "words": words})
    if as_json:
        show_row(found, as_json=True)
    else:
        rows = [{"place": place, "found": number} for place, number in found["found"].items()]
        rows += [{"place": place, "found": reason} for place, reason in found["away"].items()]
        show_rows(rows, ("place", "found"), as_json=False)
        sealed = "as it was sealed" if found["is_report_sealed"] else "NOT as it was sealed"
        typer.echo(f"the report is {sealed}; {'nothing is left' if found['is_clean'] else 'the erasure does not hold'}")
    if not found["is_clean"]:
        raise typer.Exit(1)
