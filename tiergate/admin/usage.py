from typing import Annotated, Literal

import typer

from tiergate.admin.options import DEFAULT_BASE_URL, AdminKey, AsJson, BaseUrl, connect, tenant_id
from tiergate.admin.output import show_rows

GroupBy = Literal["request", "minute", "hour", "day", "tenant", "user", "tier", "model", "adapter", "key", "pool"]


def usage(
    group_by: Annotated[GroupBy, typer.Option(help="One row each.")] = "tenant",
    since: Annotated[str | None, typer.Option("--from", help="ISO 8601, inclusive.")] = None,
    until: Annotated[str | None, typer.Option("--to", help="ISO 8601, exclusive.")] = None,
    tenant: Annotated[str | None, typer.Option(help="Only this tenant, by name or id.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="At most so many rows.")] = 1000,
    base_url: BaseUrl = DEFAULT_BASE_URL,
    admin_key: AdminKey = "",
    as_json: AsJson = False,
) -> None:
    """Show who used how much."""
    with connect(base_url, admin_key) as client:
        query = {"from": since, "to": until, "tenant_id": tenant_id(client, tenant) if tenant else None}
        show_rows(client.rows("/usage", max_rows=limit, group_by=group_by, **query), as_json=as_json)
