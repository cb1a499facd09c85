from typing import TYPE_CHECKING, Annotated, Any

import typer

from tiergate.admin.limits import assignments
from tiergate.admin.options import DEFAULT_BASE_URL, AdminKey, AsJson, BaseUrl, connect, tenant_id
from tiergate.admin.output import show_row, show_rows
from tiergate.failure import Failure

if TYPE_CHECKING:
    from tiergate.admin.client import AdminClient

app = typer.Typer(name="user", help="End users of tenants that have limits of their own.")
TenantName = Annotated[str, typer.Argument(help="The tenant's name or id.")]
UserName = Annotated[str, typer.Argument(help="The end user's name, which is the `user` of requests.")]


@app.command("list")
def list_users(
    tenant: Annotated[
        str | None, typer.Argument(help="Only this tenant's end users, by the tenant's name or id.")
    ] = None,
    base_url: BaseUrl = DEFAULT_BASE_URL,
    admin_key: AdminKey = "",
    as_json: AsJson = False,
) -> None:
    """List end users with limits of their own; all others have their tenant's `user_limits`."""
    with connect(base_url, admin_key) as client:
        owner = None if tenant is None else tenant_id(client, tenant)
        rows = [row for row in client.rows("/users") if owner in (None, row["tenant_id"])]
        show_rows(rows, ("id", "tenant_id", "user_id", "limits"), as_json=as_json)


@app.command("limits")
def set_limits(
    tenant: TenantName,
    user: UserName,
    changes: Annotated[
        list[str], typer.Argument(metavar="NAME=NUMBER...", help="Such as concurrency=2; =null removes the limit.")
    ],
    base_url: BaseUrl = DEFAULT_BASE_URL,
    admin_key: AdminKey = "",
    as_json: AsJson = False,
) -> None:
    """Set limits of an end user, for example `tiergate user limits acme alice requests_per_minute=10`."""
    with connect(base_url, admin_key) as client:
        owner, limits = tenant_id(client, tenant), assignments(changes)
        found = _find(client, owner, user)
        if found is None:
            row = client.post("/users", {"tenant_id": owner, "user_id": user, "limits": limits})
        else:
            row = client.patch(f"/users/{found['id']}", {"limits": limits})
        show_row(row, as_json=as_json)


@app.command("delete")
def delete_user(
    tenant: TenantName, user: UserName, base_url: BaseUrl = DEFAULT_BASE_URL, admin_key: AdminKey = ""
) -> None:
    """Remove all of an end user's own limits; the tenant's `user_limits` apply again."""
    with connect(base_url, admin_key) as client:
        found = _find(client, tenant_id(client, tenant), user)
        if found is None:
            raise Failure(f"{user!r} has no limits of its own there")
        client.delete(f"/users/{found['id']}")


def _find(client: "AdminClient", owner: str, user: str) -> dict[str, Any] | None:
    rows = client.rows("/users")
    return next((row for row in rows if (row["tenant_id"], row["user_id"]) == (owner, user)), None)
