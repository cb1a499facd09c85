from typing import Annotated
from urllib.parse import quote

import typer

from tiergate.admin.options import DEFAULT_BASE_URL, AdminKey, AsJson, BaseUrl, connect, given
from tiergate.admin.output import show_row, show_rows
from tiergate.admin.rerate import rerate

app = typer.Typer(name="price", help="Prices per token, in 1e-9 dollars: 100 is $0.10 per million tokens.")
app.command("rerate")(rerate)
surcharges = typer.Typer(name="surcharge", help="What a token costs in addition if an adapter serves it.")
discounts = typer.Typer(name="discount", help="Discounts of tiers and of batches.")
app.add_typer(surcharges)
app.add_typer(discounts)

ValidFrom = Annotated[str | None, typer.Option(help="ISO 8601 with a time zone; default: now.")]
IsCorrection = Annotated[
    bool,
    typer.Option(
        "--correction", help="Allow --valid-from in the past; `tiergate price rerate` then reprices that usage."
    ),
]
Version = Annotated[str, typer.Argument(help="The version, as `list` shows it.")]


@app.command("list")
def list_prices(base_url: BaseUrl = DEFAULT_BASE_URL, admin_key: AdminKey = "", as_json: AsJson = False) -> None:
    """List all versions of all prices."""
    _list(
        "/prices",
        (
            "prompt_nanousd",
            "cached_prompt_nanousd",
            "completion_nanousd",
            "minimum_nanousd",
            "cached_answer_basis_points",
        ),
        base_url,
        admin_key,
        as_json,
        key="model_id",
    )


@app.command("add")
def add_price(
    model_id: str,
    prompt: Annotated[int, typer.Option(min=0, help="The price of a prompt token.")],
    completion: Annotated[int, typer.Option(min=0, help="The price of a completion token.")],
    cached_prompt: Annotated[
        int | None, typer.Option(min=0, help="The price of a cached prompt token; default: as --prompt.")
    ] = None,
    minimum: Annotated[int, typer.Option(min=0, help="The least that a request costs.")] = 0,
    cached_answer: Annotated[
        int,
        typer.Option(
            min=0, max=10_000, help="The share of the output's price that a cached answer costs, in 1/10,000."
        ),
    ] = 0,
    valid_from: ValidFrom = None,
    is_correction: IsCorrection = False,
    base_url: BaseUrl = DEFAULT_BASE_URL,
    admin_key: AdminKey = "",
    as_json: AsJson = False,
) -> None:
    """Add a new version of a model's price. Past usage keeps its price."""
    with connect(base_url, admin_key) as client:
        draft = {
            "model_id": model_id,
            "prompt_nanousd": prompt,
            "completion_nanousd": completion,
            "minimum_nanousd": minimum,
            "cached_answer_basis_points": cached_answer,
            "is_correction": is_correction,
            **given(cached_prompt_nanousd=cached_prompt, valid_from=valid_from),
        }
        show_row(client.post("/prices", draft), as_json=as_json)


@app.command("delete")
def delete_price(version: Version, base_url: BaseUrl = DEFAULT_BASE_URL, admin_key: AdminKey = "") -> None:
    """Delete a price that is not in force yet."""
    with connect(base_url, admin_key) as client:
        client.delete(f"/prices/{quote(version)}")


@surcharges.command("list")
def list_surcharges(base_url: BaseUrl = DEFAULT_BASE_URL, admin_key: AdminKey = "", as_json: AsJson = False) -> None:
    """List all versions of all surcharges."""
    _list("/prices/surcharges", ("adapter_id", "token_nanousd"), base_url, admin_key, as_json, key="model_id")


@surcharges.command("add")
def add_surcharge(
    model_id: str,
    token: Annotated[int, typer.Option(min=0, help="The surcharge on a token of prompt or answer.")],
    adapter: Annotated[
        str | None, typer.Option(help="The adapter's id; without it: all adapters without a surcharge of their own.")
    ] = None,
    valid_from: ValidFrom = None,
    is_correction: IsCorrection = False,
    base_url: BaseUrl = DEFAULT_BASE_URL,
    admin_key: AdminKey = "",
    as_json: AsJson = False,
) -> None:
    """Add a new version of the surcharge for adapters of a model."""
    with connect(base_url, admin_key) as client:
        fields = given(adapter_id=adapter, valid_from=valid_from)
        draft = {"model_id": model_id, "token_nanousd": token, "is_correction": is_correction, **fields}
        show_row(client.post("/prices/surcharges", draft), as_json=as_json)


@surcharges.command("delete")
def delete_surcharge(version: Version, base_url: BaseUrl = DEFAULT_BASE_URL, admin_key: AdminKey = "") -> None:
    """Delete a surcharge that is not in force yet."""
    with connect(base_url, admin_key) as client:
        client.delete(f"/prices/surcharges/{quote(version)}")


@discounts.command("list")
def list_discounts(base_url: BaseUrl = DEFAULT_BASE_URL, admin_key: AdminKey = "", as_json: AsJson = False) -> None:
    """List all versions of all discounts."""
    _list("/prices/discounts", ("basis_points",), base_url, admin_key, as_json, key="tier")


@discounts.command("add")
def add_discount(
    basis_points: Annotated[int, typer.Option(min=0, max=10_000, help="The discount in basis points: 1500 is 15 %.")],
    tier: Annotated[str | None, typer.Argument(help="The tier; without it: the discount for batches.")] = None,
    valid_from: ValidFrom = None,
    is_correction: IsCorrection = False,
    base_url: BaseUrl = DEFAULT_BASE_URL,
    admin_key: AdminKey = "",
    as_json: AsJson = False,
) -> None:
    """Add a new version of the discount of a tier or of batches."""
    with connect(base_url, admin_key) as client:
        fields = given(valid_from=valid_from, tier=tier)
        draft = {"basis_points": basis_points, "is_correction": is_correction, **fields}
        show_row(client.post("/prices/discounts", draft), as_json=as_json)


@discounts.command("delete")
def delete_discount(version: Version, base_url: BaseUrl = DEFAULT_BASE_URL, admin_key: AdminKey = "") -> None:
    """Delete a discount that is not in force yet."""
    with connect(base_url, admin_key) as client:
        client.delete(f"/prices/discounts/{quote(version)}")


def _list(path: str, columns: tuple[str, ...], base_url: str, admin_key: str, as_json: bool, *, key: str) -> None:
    with connect(base_url, admin_key) as client:
        show_rows(client.rows(path), ("version", key, *columns, "valid_from"), as_json=as_json)
