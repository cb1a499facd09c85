from typing import TYPE_CHECKING, Annotated, Any

import typer

from tiergate.admin.limits import LimitOption, assignments
from tiergate.admin.options import DEFAULT_BASE_URL, AdminKey, AsJson, BaseUrl, connect, given, row_id, tenant_id
from tiergate.admin.output import show_row, show_rows

if TYPE_CHECKING:
    from tiergate.admin.client import AdminClient

app = typer.Typer(name="key", help="API keys.")
_ANY, _NEVER = "any", "never"
KeyId = Annotated[
    str, typer.Argument(metavar="KEY", help="The key's id, prefix or name, as `tiergate key list` shows it.")
]
ScopeOption = Annotated[
    list[str] | None,
    typer.Option("--scope", help="inference (default), usage, tenant-admin or platform-admin; may be repeated."),
]
ModelOption = Annotated[
    list[str] | None, typer.Option("--model", help="Allow only this pool, model or adapter; may be repeated; any: all.")
]
NetworkOption = Annotated[
    list[str] | None,
    typer.Option("--network", help="Allow requests only from this CIDR network; may be repeated; any: from anywhere."),
]
ExpiryOption = Annotated[
    str | None, typer.Option("--expires-at", help="ISO 8601 with a time zone; never: the key does not expire.")
]


@app.command("list")
def list_keys(base_url: BaseUrl = DEFAULT_BASE_URL, admin_key: AdminKey = "", as_json: AsJson = False) -> None:
    """List keys. The secret of a key is shown only when it is made."""
    with connect(base_url, admin_key) as client:
        columns = ("id", "tenant_id", "name", "prefix", "scopes", "last_used_at", "expires_at", "revoked_at")
        show_rows(client.rows("/keys"), columns, as_json=as_json)


@app.command("create")
def create_key(
    tenant: Annotated[str, typer.Argument(help="The tenant's name or id.")],
    name: Annotated[str, typer.Option(help="What the key is for.")] = "key",
    scope: ScopeOption = None,
    model: ModelOption = None,
    network: NetworkOption = None,
    expires_at: ExpiryOption = None,
    limit: LimitOption = None,
    base_url: BaseUrl = DEFAULT_BASE_URL,
    admin_key: AdminKey = "",
    as_json: AsJson = False,
) -> None:
    """Make a key. It is shown only once."""
    with connect(base_url, admin_key) as client:
        terms = _terms(model, network, expires_at, limit)
        draft = {"tenant_id": tenant_id(client, tenant), "name": name, "scopes": scope or ["inference"], **terms}
        show_row(client.post("/keys", draft), as_json=as_json)


@app.command("change")
def change_key(
    key_id: KeyId,
    name: Annotated[str | None, typer.Option(help="A new name.")] = None,
    scope: ScopeOption = None,
    model: ModelOption = None,
    network: NetworkOption = None,
    expires_at: ExpiryOption = None,
    limit: LimitOption = None,
    base_url: BaseUrl = DEFAULT_BASE_URL,
    admin_key: AdminKey = "",
    as_json: AsJson = False,
) -> None:
    """Rename a key, or change what it may do, from where, and until when."""
    with connect(base_url, admin_key) as client:
        fields = {**given(name=name, scopes=scope or None), **_terms(model, network, expires_at, limit)}
        show_row(client.patch(f"/keys/{_id(client, key_id)}", fields), as_json=as_json)


@app.command("rotate")
def rotate_key(
    key_id: KeyId,
    overlap_s: Annotated[int, typer.Option(help="How many seconds the old key keeps working.")] = 3600,
    base_url: BaseUrl = DEFAULT_BASE_URL,
    admin_key: AdminKey = "",
    as_json: AsJson = False,
) -> None:
    """Replace a key by a new one with the same id, limits and rights. It is shown only once."""
    with connect(base_url, admin_key) as client:
        show_row(client.post(f"/keys/{_id(client, key_id)}/rotate", {"overlap_s": overlap_s}), as_json=as_json)


@app.command("revoke")
def revoke_key(
    key_id: KeyId,
    base_url: BaseUrl = DEFAULT_BASE_URL,
    admin_key: AdminKey = "",
) -> None:
    """Revoke a key. Every gateway refuses it within a second, or two while Redis is away."""
    with connect(base_url, admin_key) as client:
        client.delete(f"/keys/{_id(client, key_id)}")


def _id(client: "AdminClient", key: str) -> str:
    return row_id(client, "/keys", key, noun="key")


def _terms(
    models: list[str] | None, networks: list[str] | None, expires_at: str | None, limits: list[str] | None
) -> dict[str, Any]:
    """The fields for the options that were given; `any` and `never` remove a restriction."""
    found: dict[str, Any] = {}
    for field, values in (("allowed_models", models), ("allowed_networks", networks)):
        if values:
            found[field] = None if values == [_ANY] else values
    if expires_at is not None:
        found["expires_at"] = None if expires_at == _NEVER else expires_at
    return {**found, **given(limits=assignments(limits) if limits else None)}
