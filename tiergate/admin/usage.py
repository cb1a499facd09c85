import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Literal

import typer

from tiergate.admin.options import DEFAULT_BASE_URL, AdminKey, AsJson, BaseUrl, connect, tenant_id
from tiergate.admin.output import show_rows

GroupBy = Literal["request", "minute", "hour", "day", "tenant", "user", "tier", "model", "adapter", "key", "pool"]

app = typer.Typer(name="usage", help="Show who used how much.", invoke_without_command=True)


@app.callback()
def usage(
    context: typer.Context,
    group_by: Annotated[GroupBy, typer.Option(help="What each row stands for.")] = "tenant",
    since: Annotated[str | None, typer.Option("--from", help="ISO 8601, inclusive.")] = None,
    until: Annotated[str | None, typer.Option("--to", help="ISO 8601, exclusive.")] = None,
    tenant: Annotated[str | None, typer.Option(help="Only this tenant, by name or id.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="The most rows to show.")] = 1000,
    base_url: BaseUrl = DEFAULT_BASE_URL,
    admin_key: AdminKey = "",
    as_json: AsJson = False,
) -> None:
    """Show who used how much."""
    if context.invoked_subcommand is not None:
        return
    with connect(base_url, admin_key) as client:
        query = {"from": since, "to": until, "tenant_id": tenant_id(client, tenant) if tenant else None}
        show_rows(client.rows("/usage", max_rows=limit, group_by=group_by, **query), as_json=as_json)


@app.command()
def rebuild(
    since: Annotated[datetime, typer.Option("--from", help="ISO 8601 in UTC: the first hour of the range.")],
    until: Annotated[datetime, typer.Option("--to", help="ISO 8601 in UTC: the end of the range, exclusive.")],
    config: Annotated[Path | None, typer.Option(help="A TOML file; default: tiergate.toml, if it exists.")] = None,
    as_json: AsJson = False,
) -> None:
    """Rebuild the hours and days of usage from their events, directly in ClickHouse."""
    from tiergate.commands.rebuild import rebuild_rollups

    num_hours = rebuild_rollups(config, since.replace(tzinfo=UTC), until.replace(tzinfo=UTC))
    typer.echo(json.dumps({"num_hours": num_hours}) if as_json else f"{num_hours} hours made again")
