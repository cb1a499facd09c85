from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tiergate.admin.options import DEFAULT_BASE_URL, AdminKey, AsJson, BaseUrl, connect, tenant_id
from tiergate.admin.output import show_row, show_rows

if TYPE_CHECKING:
    from tiergate.admin.client import AdminClient

_SUMS = ("num_events", "num_changed", "old_nanousd", "new_nanousd")


def rerate(
    start: Annotated[str, typer.Option("--from", help="ISO 8601 with a time zone, inclusive.")],
    end: Annotated[str, typer.Option("--to", help="ISO 8601 with a time zone, exclusive.")],
    tenant: Annotated[str | None, typer.Option(help="Only this tenant, by name or id.")] = None,
    is_applied: Annotated[
        bool, typer.Option("--apply", help="Write the new costs instead of only showing the difference.")
    ] = False,
    base_url: BaseUrl = DEFAULT_BASE_URL,
    admin_key: AdminKey = "",
    as_json: AsJson = False,
) -> None:
    """Reprice past usage with the current price book, and show the difference."""
    from rich.console import Console

    totals: Counter[str] = Counter()
    differences: Counter[tuple[str, str]] = Counter()
    with connect(base_url, admin_key) as client, Console(stderr=True).status("pricing usage anew") as status:
        draft: dict[str, Any] = {"start": start, "end": end, "apply": is_applied}
        if tenant is not None:
            draft["tenant_id"] = tenant_id(client, tenant)
        for page in _pages(client, draft):
            totals.update({name: page[name] for name in _SUMS})
            for row in page["differences"]:
                differences[row["tenant_id"], row["model"]] += row["nanousd"]
            status.update(f"{totals['num_events']} events looked at, {totals['num_changed']} cost differently")
    rows = [{"tenant_id": key[0], "model": key[1], "difference_nanousd": n} for key, n in sorted(differences.items())]
    summary: dict[str, Any] = {name: totals[name] for name in _SUMS} | {"is_applied": is_applied}
    if as_json:
        show_row(summary | {"differences": rows}, as_json=True)
    else:
        show_rows(rows, as_json=False)
        show_row(summary, as_json=False)


def _pages(client: "AdminClient", draft: dict[str, Any]) -> Iterator[dict[str, Any]]:
    after = None
    while True:
        page = client.post("/prices/rerate", draft | ({"after": after} if after else {}))
        yield page
        after = page["next"]
        if after is None:
            return
