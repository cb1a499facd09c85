"""Options of every admin command, and the client that they make."""

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
    if not admin_key:
        raise Failure("give an admin key with --admin-key or TIERGATE_ADMIN_KEY")
    from tiergate.admin.client import AdminClient

    return AdminClient(base_url, admin_key)


def tenant_id(client: "AdminClient", name_or_id: str) -> str:
    """A tenant may be named instead of numbered. Raises Failure when there is none of that name."""
    try:
        return str(UUID(name_or_id))
    except ValueError:
        for tenant in client.rows("/tenants"):
            if tenant["name"] == name_or_id:
                return str(tenant["id"])
    raise Failure(f"there is no tenant {name_or_id!r}")


def given(**fields: Any) -> Mapping[str, Any]:
    """The fields that were given; the others stay as they are."""
    return {name: value for name, value in fields.items() if value is not None}
