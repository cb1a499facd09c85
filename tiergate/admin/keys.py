from typing import Annotated

import typer

from tiergate.admin.options import DEFAULT_BASE_URL, AdminKey, AsJson, BaseUrl, connect, tenant_id
from tiergate.admin.output import show_row, show_rows

app = typer.Typer(name="key", help="API keys.")


@app.command("list")
def list_keys(base_url: BaseUrl = DEFAULT_BASE_URL, admin_key: AdminKey = "", as_json: AsJson = False) -> None:
    """List keys; the keys themselves are shown only when they are made."""
    with connect(base_url, admin_key) as client:
        columns = ("id", "tenant_id", "name", "prefix", "scopes", "revoked_at")
        show_rows(client.rows("/keys"), columns, as_json=as_json)


@app.command("create")
def create_key(
    tenant: Annotated[str, typer.Argument(help="The tenant's name or id.")],
    name: Annotated[str, typer.Option(help="What the key is for.")] = "key",
    scope: Annotated[list[str] | None, typer.Option(help="inference (default), tenant-admin; may be repeated.")] = None,
    base_url: BaseUrl = DEFAULT_BASE_URL,
    admin_key: AdminKey = "",
    as_json: AsJson = False,
) -> None:
    """Make a key. It is shown this once."""
    with connect(base_url, admin_key) as client:
        draft = {"tenant_id": tenant_id(client, tenant), "name": name, "scopes": scope or ["inference"]}
        show_row(client.post("/keys", draft), as_json=as_json)


@app.command("revoke")
def revoke_key(
    key_id: Annotated[str, typer.Argument(help="The key's id, as `tiergate key list` shows it.")],
    base_url: BaseUrl = DEFAULT_BASE_URL,
    admin_key: AdminKey = "",
) -> None:
    """Revoke a key; every gateway refuses it within seconds."""
    with connect(base_url, admin_key) as client:
        client.delete(f"/keys/{key_id}")
