from typing import Annotated
from urllib.parse import quote

import typer

from tiergate.admin.options import DEFAULT_BASE_URL, AdminKey, AsJson, BaseUrl, connect, given
from tiergate.admin.output import show_row, show_rows

app = typer.Typer(name="price", help="Prices of one token, in 1e-9 dollars: 100 is $0.10 a million.")


@app.command("list")
def list_prices(base_url: BaseUrl = DEFAULT_BASE_URL, admin_key: AdminKey = "", as_json: AsJson = False) -> None:
    """List all versions of all prices."""
    with connect(base_url, admin_key) as client:
        columns = ("version", "model_id", "prompt_nanousd", "cached_prompt_nanousd", "completion_nanousd", "valid_from")
        show_rows(client.rows("/prices"), columns, as_json=as_json)


@app.command("add")
def add_price(
    model_id: str,
    prompt: Annotated[int, typer.Option(min=0, help="A prompt token.")],
    completion: Annotated[int, typer.Option(min=0, help="A completion token.")],
    cached_prompt: Annotated[
        int | None, typer.Option(min=0, help="A cached prompt token; default: as --prompt.")
    ] = None,
    valid_from: Annotated[str | None, typer.Option(help="ISO 8601 with a zone; default: now.")] = None,
    base_url: BaseUrl = DEFAULT_BASE_URL,
    admin_key: AdminKey = "",
    as_json: AsJson = False,
) -> None:
    """Add a new version of a model's price; past usage keeps its own."""
    with connect(base_url, admin_key) as client:
        draft = {
            "model_id": model_id,
            "prompt_nanousd": prompt,
            "completion_nanousd": completion,
            **given(cached_prompt_nanousd=cached_prompt, valid_from=valid_from),
        }
        show_row(client.post("/prices", draft), as_json=as_json)


@app.command("delete")
def delete_price(
    version: Annotated[str, typer.Argument(help="As `tiergate price list` shows it.")],
    base_url: BaseUrl = DEFAULT_BASE_URL,
    admin_key: AdminKey = "",
) -> None:
    """Delete a price that is not in force yet."""
    with connect(base_url, admin_key) as client:
        client.delete(f"/prices/{quote(version)}")
