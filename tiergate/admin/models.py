from typing import Annotated, Literal
from urllib.parse import quote

import typer

from tiergate.admin.options import DEFAULT_BASE_URL, AdminKey, AsJson, BaseUrl, connect
from tiergate.admin.output import show_row, show_rows

app = typer.Typer(name="model", help="Models and the pools that serve them.")


@app.command("list")
def list_models(base_url: BaseUrl = DEFAULT_BASE_URL, admin_key: AdminKey = "", as_json: AsJson = False) -> None:
    """List models."""
    with connect(base_url, admin_key) as client:
        show_rows(client.rows("/models"), as_json=as_json)


@app.command("declare")
def declare_model(
    model_id: Annotated[str, typer.Argument(help="The model's id, which clients see.")],
    pool: Annotated[str, typer.Option(help="The pool that serves it.")],
    context_window: Annotated[int, typer.Option(min=1, help="The most tokens of prompt and answer together.")],
    kind: Annotated[Literal["chat", "embedding"], typer.Option(help="What the model does.")] = "chat",
    base_url: BaseUrl = DEFAULT_BASE_URL,
    admin_key: AdminKey = "",
    as_json: AsJson = False,
) -> None:
    """Declare a model, or change a declared one."""
    with connect(base_url, admin_key) as client:
        draft = {"id": model_id, "pool": pool, "context_window": context_window, "kind": kind}
        show_row(client.post("/models", draft), as_json=as_json)


@app.command("delete")
def delete_model(
    model_id: Annotated[str, typer.Argument(help="The model's id, which clients see.")],
    base_url: BaseUrl = DEFAULT_BASE_URL,
    admin_key: AdminKey = "",
) -> None:
    """Delete a model that nothing serves or names any more. Its prices and usage are kept."""
    with connect(base_url, admin_key) as client:
        client.delete(f"/models/{quote(model_id)}")
