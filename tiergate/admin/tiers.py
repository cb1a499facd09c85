from typing import Annotated

import typer

from tiergate.admin.limits import assignments
from tiergate.admin.options import DEFAULT_BASE_URL, AdminKey, AsJson, BaseUrl, connect, given
from tiergate.admin.output import show_row, show_rows

app = typer.Typer(name="tier", help="Tiers, which set the limits and routing of their tenants.")
_COLUMNS = ("name", "requests_per_minute", "tokens_per_minute", "concurrency", "tokens_per_day", "retired_at")


@app.command("list")
def list_tiers(base_url: BaseUrl = DEFAULT_BASE_URL, admin_key: AdminKey = "", as_json: AsJson = False) -> None:
    """List tiers."""
    with connect(base_url, admin_key) as client:
        show_rows(client.rows("/tiers"), _COLUMNS, as_json=as_json)


@app.command("show")
def show_tier(
    name: str, base_url: BaseUrl = DEFAULT_BASE_URL, admin_key: AdminKey = "", as_json: AsJson = False
) -> None:
    """Show one tier."""
    with connect(base_url, admin_key) as client:
        show_row(client.get(f"/tiers/{name}"), as_json=as_json)


@app.command("change")
def change_tier(
    name: str,
    changes: Annotated[
        list[str], typer.Argument(metavar="FIELD=VALUE...", help="Such as requests_per_minute=600; null: no limit.")
    ],
    base_url: BaseUrl = DEFAULT_BASE_URL,
    admin_key: AdminKey = "",
    as_json: AsJson = False,
) -> None:
    """Change limits and routing, for example `tiergate tier change free requests_per_minute=30`."""
    with connect(base_url, admin_key) as client:
        show_row(client.patch(f"/tiers/{name}", assignments(changes)), as_json=as_json)


@app.command("create")
def create_tier(
    name: str,
    changes: Annotated[
        list[str] | None,
        typer.Argument(metavar="FIELD=VALUE...", help="Values that replace the copied ones or the defaults."),
    ] = None,
    copy_of: Annotated[str | None, typer.Option("--copy-of", help="The tier to copy the other values from.")] = None,
    base_url: BaseUrl = DEFAULT_BASE_URL,
    admin_key: AdminKey = "",
    as_json: AsJson = False,
) -> None:
    """Make a tier, for example `tiergate tier create trial --copy-of free concurrency=1`."""
    with connect(base_url, admin_key) as client:
        draft = {**assignments(changes or []), **given(copy_of=copy_of), "name": name}
        show_row(client.post("/tiers", draft), as_json=as_json)


@app.command("retire")
def retire_tier(
    name: str,
    restore: Annotated[bool, typer.Option("--restore", help="Make a retired tier available again.")] = False,
    base_url: BaseUrl = DEFAULT_BASE_URL,
    admin_key: AdminKey = "",
    as_json: AsJson = False,
) -> None:
    """Retire a tier: it accepts no new tenants, and those that have it keep it."""
    with connect(base_url, admin_key) as client:
        show_row(client.patch(f"/tiers/{name}", {"is_retired": not restore}), as_json=as_json)
