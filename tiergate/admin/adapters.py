from pathlib import Path
from typing import Annotated

import typer

from tiergate.admin.options import DEFAULT_BASE_URL, AdminKey, AsJson, BaseUrl, connect, row_id, tenant_id
from tiergate.admin.output import show_row, show_rows
from tiergate.failure import Failure

app = typer.Typer(name="adapter", help="LoRA adapters.")


@app.command("list")
def list_adapters(base_url: BaseUrl = DEFAULT_BASE_URL, admin_key: AdminKey = "", as_json: AsJson = False) -> None:
    """List adapters."""
    with connect(base_url, admin_key) as client:
        show_rows(client.rows("/adapters"), ("id", "name", "tenant_id", "status", "variants"), as_json=as_json)


@app.command("upload")
def upload_adapter(
    path: Annotated[
        Path, typer.Argument(help="A folder as PEFT saves it: adapter_config.json and adapter_model.safetensors.")
    ],
    tenant: Annotated[
        str | None, typer.Option(help="The owner, a tenant's name or id; without it: for everybody.")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(help="The base model; default: the one that the adapter's config names, or the only one."),
    ] = None,
    name: Annotated[str | None, typer.Option(help="The name that clients ask for; default: the folder's name.")] = None,
    replace: Annotated[bool, typer.Option("--replace", help="Replace the existing adapter of this name.")] = False,
    base_url: BaseUrl = DEFAULT_BASE_URL,
    admin_key: AdminKey = "",
    as_json: AsJson = False,
) -> None:
    """Upload an adapter. It can be used as soon as its status is `ready`.

    If an adapter of this name exists without a variant for the base model, the variant is added to it.
    """
    from tiergate.admin.uploading import upload

    with connect(base_url, admin_key) as client:
        owner = tenant_id(client, tenant) if tenant else None
        made = upload(client, path, name=name, model=model, tenant_id=owner, replaces=replace)
        show_row(made, as_json=as_json)


@app.command("create")
def create_adapter(
    name: str,
    variant: Annotated[
        list[str], typer.Option(metavar="MODEL[=NAME]", help="A base model, and the adapter's name at its workers.")
    ],
    tenant: Annotated[
        str | None, typer.Option(help="The owner, a tenant's name or id; without it: for everybody.")
    ] = None,
    base_url: BaseUrl = DEFAULT_BASE_URL,
    admin_key: AdminKey = "",
    as_json: AsJson = False,
) -> None:
    """Declare an adapter that workers have loaded themselves."""
    with connect(base_url, admin_key) as client:
        draft = {
            "name": name,
            "variants": dict(_variant(text, name) for text in variant),
            "tenant_id": tenant_id(client, tenant) if tenant else None,
        }
        show_row(client.post("/adapters", draft), as_json=as_json)


@app.command("delete")
def delete_adapter(
    adapter: Annotated[str, typer.Argument(help="The adapter's name or id, as `tiergate adapter list` shows it.")],
    base_url: BaseUrl = DEFAULT_BASE_URL,
    admin_key: AdminKey = "",
) -> None:
    """Delete an adapter. Workers unload it, unless they were started with it."""
    with connect(base_url, admin_key) as client:
        client.delete(f"/adapters/{row_id(client, '/adapters', adapter, noun='adapter')}")


def _variant(text: str, adapter: str) -> tuple[str, str]:
    model, _, name = text.partition("=")
    if not model:
        raise Failure(f"--variant {text!r}: write MODEL or MODEL=NAME")
    return model, name or adapter
