"""The options of every admin command, and the client made from them."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any
from uuid import UUID

import typer

from tiergate.failure import Failure

if TYPE_CHECKING:
    from tiergate.admin.client import AdminClient

DEFAULT_BASE_URL = "http://127.0.0.1:8080/v1"

BaseUrl = Annotated[str, typer.Option(envvar="TIERGATE_BASE_URL", help="The gateway's base URL.")]
AdminKey = Annotated[str, typer.Option(envvar="TIERGATE_ADMIN_KEY", help="A key with an admin scope.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def connect(base_url: str, admin_key: str) -> "AdminClient":
    """A client of the platform at `base_url`; without a key, of the platform of the chosen profile. Raises Failure."""
    from tiergate.admin.client import AdminClient
    from tiergate.admin.profiles import chosen_profile

    if not admin_key:
        profile = chosen_profile()
        if profile is None:
            raise Failure("give an admin key with --admin-key or TIERGATE_ADMIN_KEY, or `tiergate login` once")
        # A key is for its own platform and is sent to no other.
        if base_url not in (DEFAULT_BASE_URL, profile.base_url):
            raise Failure(f"you are logged in to {profile.base_url}, not to {base_url}; give --admin-key for that one")
        base_url, admin_key = profile.base_url, profile.admin_key
    return AdminClient(base_url, admin_key)


def tenant_id(client: "AdminClient", name_or_id: str) -> str:
    """The id of the tenant with this name or id. Raises Failure if no tenant has the name."""
    try:
        return str(UUID(name_or_id))
    except ValueError:
        for tenant in client.rows("/tenants"):
            if tenant["name"] == name_or_id:
                return str(tenant["id"])
    raise Failure(f"there is no tenant {name_or_id!r}")


def row_id(client: "AdminClient", path: str, name_or_id: str, *, noun: str, tenant: str | None = None) -> str:
    """The id of the row with this name or id in the list at `path`. tenant: search only this tenant's rows.

    Raises Failure if no row, or more than one, has the name.
    """
    try:
        return str(UUID(name_or_id))
    except ValueError:
        owner = tenant_id(client, tenant) if tenant else None
    found = [
        row
        for row in client.rows(path, tenant_id=owner)
        if name_or_id in (row["name"], row.get("prefix")) and not row.get("revoked_at")
    ]
    if len(found) == 1:
        return str(found[0]["id"])
    if not found:
        raise Failure(f"there is no {noun} {name_or_id!r}")
    ids = ", ".join(str(row["id"]) for row in found[:5])
    raise Failure(f"{len(found)} have the name {name_or_id!r}: name one by its id ({ids})")


def given(**fields: Any) -> Mapping[str, Any]:
    """The fields that were given; all others keep their values."""
    return {name: value for name, value in fields.items() if value is not None}
