import sys
from typing import Annotated

import typer

from tiergate.admin.options import DEFAULT_BASE_URL, AdminKey, AsJson, BaseUrl, connect
from tiergate.admin.output import show_row, show_rows


def reconcile(
    since: Annotated[str | None, typer.Option("--from", help="ISO 8601; default: 24 hours before --to.")] = None,
    until: Annotated[str | None, typer.Option("--to", help="ISO 8601; default: now.")] = None,
    show_all: Annotated[bool, typer.Option("--all", help="Also show the hours that add up.")] = False,
    base_url: BaseUrl = DEFAULT_BASE_URL,
    admin_key: AdminKey = "",
    as_json: AsJson = False,
) -> None:
    """Compare what gateways admitted, what ClickHouse holds and what workers counted. Exit code 1: they differ."""
    with connect(base_url, admin_key) as client:
        found = client.get("/reconciliation", **{"from": since, "to": until, "all": show_all})
    if as_json:
        show_row(found, as_json=True)
    else:
        for name in ("events", "tokens"):
            sys.stdout.write(f"{name} of settled hours that are not reconciled: {found[f'num_unreconciled_{name}']}\n")
            if found[name]:
                show_rows(found[name], as_json=False)
        if found["silent_workers"]:
            sys.stdout.write(f"no ledger tells of {', '.join(found['silent_workers'])}\n")
    raise typer.Exit(1 if found["num_unreconciled_events"] or found["num_unreconciled_tokens"] else 0)
