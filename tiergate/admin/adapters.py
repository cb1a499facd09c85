from typing import Annotated

import typer

from tiergate.admin.options import DEFAULT_BASE_URL, AdminKey, AsJson, BaseUrl, connect, tenant_id
from tiergate.admin.output import show_row, show_rows
from tiergate.failure import Failure

app = typer.Typer(name="adapter", help="LoRA adapters.")


@app.command("list")
def list_adapters(base_url: BaseUrl = DEFAULT_BASE_URL, admin_key: AdminKey = "", as_json: AsJson = False) -> None:
    """List adapters."""
    with connect(base_url, admin_key) as client:
        show_rows(client.rows("/adapters"), ("id", "name", "tenant_id", "variants"), as_json=as_json)


@app.command("create")
def create_adapter(
    name: str,
    variant: Annotated[
        list[str], typer.Option(metavar="MODEL[=NAME]", help="A base model, and the adapter's name at its workers.")
    ],
    tenant: Annotated[str | None, typer.Option(help="Its owner, by name or id; left out: for everybody.")] = None,
    base_url: BaseUrl = DEFAULT_BASE_URL,
    admin_key: AdminKey = "",
    as_json: AsJson = False,
) -> None:
    """Declare an adapter that the workers have loaded."""
    with connect(base_url, admin_key) as client:
        draft = {
            "name": name,
            "variants": dict(_variant(text, name) for text in variant),
            "tenant_id": tenant_id(client, tenant) if tenant else None,
        }
        show_row(client.post("/adapters", draft), as_json=as_json)


@app.command("delete")
def delete_adapter(
    adapter_id: Annotated[str, typer.Argument(help="The adapter's id, as `tiergate adapter list` shows it.")],
    base_url: BaseUrl = DEFAULT_BASE_URL,
    admin_key: AdminKey = "",
) -> None:
    """Delete an adapter's declaration; workers keep its weights."""
    with connect(base_url, admin_key) as client:
        client.delete(f"/adapters/{adapter_id}")


def _variant(text: str, adapter: str) -> tuple[str, str]:
    model, _, name = text.partition("=")
    if not model:
        raise Failure(f"--variant {text!r}: write MODEL or MODEL=NAME")
    return model, name or adapter
