import sys
from pathlib import Path
from typing import Annotated, Any
from uuid import UUID

import typer

from tiergate.admin.options import DEFAULT_BASE_URL, AdminKey, AsJson, BaseUrl, connect, tenant_id
from tiergate.admin.output import show_rows
from tiergate.commands.audit import verify

app = typer.Typer(name="audit", help="The audit log: who changed what.")
app.command("verify")(verify)

TenantOption = Annotated[str | None, typer.Option(help="Only changes of this tenant, by name or id.")]
ActorOption = Annotated[
    str | None, typer.Option(help="Only changes by the key with this id or the person with this email.")
]
ActionOption = Annotated[
    str | None, typer.Option(help="Only this action (invoice.finalize), or all of one kind (invoice).")
]
ObjectOption = Annotated[str | None, typer.Option("--object", help="Only changes of the object with this id.")]
RequestOption = Annotated[str | None, typer.Option("--request", help="Only changes by the request with this id.")]
FromOption = Annotated[str | None, typer.Option("--from", help="ISO 8601, inclusive.")]
ToOption = Annotated[str | None, typer.Option("--to", help="ISO 8601, exclusive.")]
_COLUMNS = ("at", "actor_key_id", "actor_email", "action", "object_id", "address", "before", "after")


@app.command("list")
def list_entries(
    tenant: TenantOption = None,
    actor: ActorOption = None,
    action: ActionOption = None,
    changed_object: ObjectOption = None,
    request: RequestOption = None,
    since: FromOption = None,
    until: ToOption = None,
    limit: Annotated[int, typer.Option(min=1, help="The most rows to show.")] = 100,
    base_url: BaseUrl = DEFAULT_BASE_URL,
    admin_key: AdminKey = "",
    as_json: AsJson = False,
) -> None:
    """List changes, newest first."""
    asked = _asked(actor, action, changed_object, request, since, until)
    with connect(base_url, admin_key) as client:
        asked["tenant_id"] = tenant_id(client, tenant) if tenant else None
        rows = client.rows("/audit", max_rows=limit, newest_first=True, **asked)
        show_rows(rows, _COLUMNS, as_json=as_json)


@app.command("export")
def export(
    target: Annotated[
        str, typer.Argument(help="A file that ends in .jsonl or .csv; - for JSON lines on standard output.")
    ],
    tenant: TenantOption = None,
    actor: ActorOption = None,
    action: ActionOption = None,
    changed_object: ObjectOption = None,
    request: RequestOption = None,
    since: FromOption = None,
    until: ToOption = None,
    base_url: BaseUrl = DEFAULT_BASE_URL,
    admin_key: AdminKey = "",
) -> None:
    """Write changes to a file, oldest first."""
    from tiergate.failure import Failure

    if target != "-" and not target.endswith((".jsonl", ".csv")):
        raise Failure(f"{target}: end the file's name in .jsonl or .csv")
    asked = _asked(actor, action, changed_object, request, since, until)
    with connect(base_url, admin_key) as client:
        asked |= {"tenant_id": tenant_id(client, tenant) if tenant else None}
        if target == "-":
            client.download_to(sys.stdout.buffer, "/audit/export", **asked)
            return
        path = Path(target)
        try:
            with path.open("wb") as file:
                client.download_to(file, "/audit/export", format=path.suffix[1:], **asked)
        except OSError as error:
            raise Failure(f"{target}: {error.strerror}") from error


def _asked(
    actor: str | None,
    action: str | None,
    changed_object: str | None,
    request: str | None,
    since: str | None,
    until: str | None,
) -> dict[str, Any]:
    by = {"actor_key_id" if _is_id(actor) else "actor_person": actor}
    asked = {**by, "action": action, "object_id": changed_object, "request_id": request}
    return asked | {"from": since, "to": until}


def _is_id(actor: str | None) -> bool:
    try:
        UUID(actor or "")
    except ValueError:
        return False
    return True
