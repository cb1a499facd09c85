from typing import Annotated

import typer

from tiergate.admin.limits import LimitOption, assignments
from tiergate.admin.options import DEFAULT_BASE_URL, AdminKey, AsJson, BaseUrl, connect, given, tenant_id
from tiergate.admin.output import show_row, show_rows

app = typer.Typer(name="tenant", help="Tenants, which are the platform's customers.")
TenantName = Annotated[str, typer.Argument(help="The tenant's name or id.")]


@app.command("list")
def list_tenants(base_url: BaseUrl = DEFAULT_BASE_URL, admin_key: AdminKey = "", as_json: AsJson = False) -> None:
    """List tenants."""
    with connect(base_url, admin_key) as client:
        show_rows(client.rows("/tenants"), ("id", "name", "tier", "suspended_at"), as_json=as_json)


@app.command("create")
def create_tenant(
    name: str,
    tier: Annotated[str, typer.Option(help="The tenant's tier: free, pro, enterprise or another one.")] = "free",
    local_only: Annotated[
        bool, typer.Option("--local-only", help="Never send its requests to an external provider.")
    ] = False,
    base_url: BaseUrl = DEFAULT_BASE_URL,
    admin_key: AdminKey = "",
    as_json: AsJson = False,
) -> None:
    """Create a tenant."""
    with connect(base_url, admin_key) as client:
        draft = {"name": name, "tier": tier, "is_local_only": local_only}
        show_row(client.post("/tenants", draft), as_json=as_json)


@app.command("show")
def show_tenant(
    tenant: TenantName, base_url: BaseUrl = DEFAULT_BASE_URL, admin_key: AdminKey = "", as_json: AsJson = False
) -> None:
    """Show one tenant."""
    with connect(base_url, admin_key) as client:
        show_row(client.get(f"/tenants/{tenant_id(client, tenant)}"), as_json=as_json)


@app.command("change")
def change_tenant(
    tenant: TenantName,
    name: Annotated[str | None, typer.Option(help="A new name.")] = None,
    tier: Annotated[str | None, typer.Option(help="Another tier.")] = None,
    suspend: Annotated[
        bool | None, typer.Option("--suspend/--resume", help="Refuse all of its keys, or accept them again.")
    ] = None,
    local_only: Annotated[
        bool | None,
        typer.Option(
            "--local-only/--may-leave", help="Never send its requests to an external provider, or allow it again."
        ),
    ] = None,
    limit: LimitOption = None,
    user_limit: Annotated[
        list[str] | None,
        typer.Option(
            "--user-limit",
            metavar="NAME=NUMBER",
            help="A limit of each of its end users, in the same form; may be repeated.",
        ),
    ] = None,
    base_url: BaseUrl = DEFAULT_BASE_URL,
    admin_key: AdminKey = "",
    as_json: AsJson = False,
) -> None:
    """Rename a tenant, move it to another tier, suspend or resume it, or give it limits that replace its tier's."""
    with connect(base_url, admin_key) as client:
        limits = given(
            limits=assignments(limit) if limit else None, user_limits=assignments(user_limit) if user_limit else None
        )
        fields = {**given(name=name, tier=tier, is_suspended=suspend, is_local_only=local_only), **limits}
        show_row(client.patch(f"/tenants/{tenant_id(client, tenant)}", fields), as_json=as_json)


@app.command("delete")
def delete_tenant(tenant: TenantName, base_url: BaseUrl = DEFAULT_BASE_URL, admin_key: AdminKey = "") -> None:
    """Delete a tenant for good: its keys stop working and its adapters are removed. Its usage is kept for invoices."""
    with connect(base_url, admin_key) as client:
        client.delete(f"/tenants/{tenant_id(client, tenant)}")
