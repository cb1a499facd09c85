import json
from typing import Annotated, Any

import typer

from tiergate.admin.options import DEFAULT_BASE_URL, AdminKey, AsJson, BaseUrl, connect
from tiergate.admin.output import show_row, show_rows
from tiergate.failure import Failure

app = typer.Typer(name="tier", help="Tiers: limits and routing of their tenants.")
_COLUMNS = ("name", "requests_per_minute", "tokens_per_minute", "concurrency", "tokens_per_day", "priority")


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
        list[str], typer.Argument(metavar="FIELD=VALUE...", help="requests_per_minute=600; null: none.")
    ],
    base_url: BaseUrl = DEFAULT_BASE_URL,
    admin_key: AdminKey = "",
    as_json: AsJson = False,
) -> None:
    """Change limits and routing, for example `tiergate tier change free requests_per_minute=30`."""
    with connect(base_url, admin_key) as client:
        show_row(client.patch(f"/tiers/{name}", dict(map(_assignment, changes))), as_json=as_json)


def _assignment(text: str) -> tuple[str, Any]:
    field, equals, value = text.partition("=")
    if not equals:
        raise Failure(f"{text!r}: write FIELD=VALUE")
    try:
        return field, json.loads(value)
    except ValueError:
        return field, value
