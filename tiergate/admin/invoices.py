import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from tiergate.admin.options import DEFAULT_BASE_URL, AdminKey, AsJson, BaseUrl, connect, given, tenant_id
from tiergate.admin.output import show_row, show_rows

app = typer.Typer(name="invoice", help="Invoices, credit notes and prepaid credit; amounts in 1e-9 dollars.")
credit = typer.Typer(name="credit", help="Prepaid credit of tenants.")
account = typer.Typer(name="account", help="How a tenant is billed: time zone, tax, recipient.")
app.add_typer(credit)
app.add_typer(account)

TenantName = Annotated[str, typer.Argument(help="The tenant's name or id.")]
InvoiceId = Annotated[str, typer.Argument(help="The invoice's id, as `tiergate invoice list` shows it.")]
_COLUMNS = ("id", "number", "kind", "status", "tenant_id", "period_start", "period_end", "total_nanousd", "due_nanousd")


@app.command("create")
def create_invoice(
    tenant: Annotated[str | None, typer.Argument(help="The tenant's name or id; left out with --all.")] = None,
    month: Annotated[str | None, typer.Option(help="A month in the tenant's time zone, such as 2026-03.")] = None,
    start: Annotated[
        str | None,
        typer.Option("--from", help="ISO 8601 with a time zone; default: the end of the last final invoice."),
    ] = None,
    end: Annotated[str | None, typer.Option("--to", help="ISO 8601 with a time zone; default: now.")] = None,
    is_for_all: Annotated[
        bool, typer.Option("--all", help="For every tenant that has no invoice for the period.")
    ] = False,
    base_url: BaseUrl = DEFAULT_BASE_URL,
    admin_key: AdminKey = "",
    as_json: AsJson = False,
) -> None:
    """Draft an invoice for a month or any other period."""
    from tiergate.admin.client import ApiError
    from tiergate.failure import Failure

    if is_for_all is (tenant is not None):
        raise Failure("name a tenant, or --all")
    draft = given(month=month, start=start, end=end)
    with connect(base_url, admin_key) as client:
        if tenant is not None:
            show_row(client.post("/invoices", {"tenant_id": tenant_id(client, tenant), **draft}), as_json=as_json)
            return
        made: list[dict[str, Any]] = []
        for each in client.rows("/tenants", with_deleted=True):
            try:
                made.append(client.post("/invoices", {"tenant_id": each["id"], **draft}))
            except ApiError as error:
                if error.status != 409:
                    raise
                sys.stderr.write(f"{each['name']}: {error}\n")
        show_rows(made, _COLUMNS, as_json=as_json)


@app.command("list")
def list_invoices(
    tenant: Annotated[str | None, typer.Option(help="Only this tenant's, by name or id.")] = None,
    base_url: BaseUrl = DEFAULT_BASE_URL,
    admin_key: AdminKey = "",
    as_json: AsJson = False,
) -> None:
    """List invoices and credit notes."""
    with connect(base_url, admin_key) as client:
        only = tenant_id(client, tenant) if tenant else None
        show_rows(client.rows("/invoices", tenant_id=only), _COLUMNS, as_json=as_json)


@app.command("show")
def show_invoice(
    invoice: InvoiceId,
    base_url: BaseUrl = DEFAULT_BASE_URL,
    admin_key: AdminKey = "",
    as_json: AsJson = False,
) -> None:
    """Show an invoice and its lines."""
    with connect(base_url, admin_key) as client:
        found = client.get(f"/invoices/{invoice}")
    if as_json:
        show_row(found, as_json=True)
        return
    lines = found.pop("lines")
    show_row(found, as_json=False)
    columns = ("position", "description", "month", "num_requests", "quantity", "unit_price_nanousd", "amount_nanousd")
    show_rows(lines, columns, as_json=False)


@app.command("requests")
def list_requests(
    invoice: InvoiceId,
    position: Annotated[int, typer.Argument(help="The line's position, as `tiergate invoice show` shows it.")],
    limit: Annotated[int, typer.Option(min=1, help="The most rows to show.")] = 1000,
    base_url: BaseUrl = DEFAULT_BASE_URL,
    admin_key: AdminKey = "",
    as_json: AsJson = False,
) -> None:
    """List the requests that a line sums up."""
    with connect(base_url, admin_key) as client:
        rows = client.rows(f"/invoices/{invoice}/lines/{position}/requests", max_rows=limit)
        show_rows(rows, as_json=as_json)


@app.command("recalculate")
def recalculate_invoice(
    invoice: InvoiceId, base_url: BaseUrl = DEFAULT_BASE_URL, admin_key: AdminKey = "", as_json: AsJson = False
) -> None:
    """Recalculate a draft with the usage that has arrived since."""
    with connect(base_url, admin_key) as client:
        show_row(client.post(f"/invoices/{invoice}/recalculate", {}), as_json=as_json)


@app.command("finalize")
def finalize_invoice(
    invoice: InvoiceId, base_url: BaseUrl = DEFAULT_BASE_URL, admin_key: AdminKey = "", as_json: AsJson = False
) -> None:
    """Make a draft final: it gets its number, is paid from prepaid credit where possible, and never changes again."""
    with connect(base_url, admin_key) as client:
        show_row(client.post(f"/invoices/{invoice}/finalize", {}), as_json=as_json)


@app.command("delete")
def delete_invoice(invoice: InvoiceId, base_url: BaseUrl = DEFAULT_BASE_URL, admin_key: AdminKey = "") -> None:
    """Delete a draft."""
    with connect(base_url, admin_key) as client:
        client.delete(f"/invoices/{invoice}")


@app.command("credit-note")
def credit_note(
    invoice: InvoiceId,
    net: Annotated[int, typer.Option(min=1, help="The amount to take back, before tax.")],
    reason: Annotated[str, typer.Option(help="The reason, which the credit note states.")],
    base_url: BaseUrl = DEFAULT_BASE_URL,
    admin_key: AdminKey = "",
    as_json: AsJson = False,
) -> None:
    """Take back a part of a final invoice; the amount becomes the tenant's credit."""
    with connect(base_url, admin_key) as client:
        draft = {"net_nanousd": net, "reason": reason}
        show_row(client.post(f"/invoices/{invoice}/credit-notes", draft), as_json=as_json)


@app.command("download")
def download_invoice(
    invoice: InvoiceId,
    target: Annotated[
        Path, typer.Argument(help="The file to write; its ending (.html, .pdf or .csv) selects the format.")
    ],
    base_url: BaseUrl = DEFAULT_BASE_URL,
    admin_key: AdminKey = "",
) -> None:
    """Write an invoice to a file, to print or to send."""
    from tiergate.failure import Failure

    if target.suffix not in (".html", ".pdf", ".csv"):
        raise Failure(f"{target}: end the file's name in .html, .pdf or .csv")
    with connect(base_url, admin_key) as client:
        target.write_bytes(client.download(f"/invoices/{invoice}/document", format=target.suffix[1:]))


@credit.command("show")
def show_credit(
    tenant: TenantName, base_url: BaseUrl = DEFAULT_BASE_URL, admin_key: AdminKey = "", as_json: AsJson = False
) -> None:
    """Show the balance of a tenant's credit and its entries."""
    with connect(base_url, admin_key) as client:
        tenant = tenant_id(client, tenant)
        balance = client.get(f"/credits/{tenant}/balance")
        entries = list(client.rows("/credits", tenant_id=tenant))
    if as_json:
        show_row(balance | {"entries": entries}, as_json=True)
    else:
        show_rows(entries, ("at", "kind", "amount_nanousd", "note"), as_json=False)
        show_row(balance, as_json=False)


@credit.command("grant")
def grant_credit(
    tenant: TenantName,
    amount: Annotated[int, typer.Option(help="The credit to add; a negative amount takes credit back.")],
    note: Annotated[str, typer.Option(help="The reason, for the record.")],
    base_url: BaseUrl = DEFAULT_BASE_URL,
    admin_key: AdminKey = "",
    as_json: AsJson = False,
) -> None:
    """Add credit, which pays final invoices first."""
    with connect(base_url, admin_key) as client:
        draft = {"tenant_id": tenant_id(client, tenant), "amount_nanousd": amount, "note": note}
        show_row(client.post("/credits", draft), as_json=as_json)


@account.command("show")
def show_account(
    tenant: TenantName, base_url: BaseUrl = DEFAULT_BASE_URL, admin_key: AdminKey = "", as_json: AsJson = False
) -> None:
    """Show how a tenant is billed."""
    with connect(base_url, admin_key) as client:
        show_row(client.get(f"/billing-accounts/{tenant_id(client, tenant)}"), as_json=as_json)


@account.command("set")
def set_account(
    tenant: TenantName,
    time_zone: Annotated[str | None, typer.Option(help="A time zone, such as Europe/Berlin.")] = None,
    tax_name: Annotated[str | None, typer.Option(help="The tax's name, such as VAT.")] = None,
    tax_basis_points: Annotated[
        int | None, typer.Option(min=0, max=10_000, help="The tax in basis points: 1900 is 19 %.")
    ] = None,
    recipient: Annotated[str | None, typer.Option(help="Name and address; \\n starts a new line.")] = None,
    base_url: BaseUrl = DEFAULT_BASE_URL,
    admin_key: AdminKey = "",
    as_json: AsJson = False,
) -> None:
    """Change how a tenant is billed from now on."""
    with connect(base_url, admin_key) as client:
        path = f"/billing-accounts/{tenant_id(client, tenant)}"
        lines = recipient.replace("\\n", "\n") if recipient is not None else None
        fields = given(time_zone=time_zone, tax_name=tax_name, tax_basis_points=tax_basis_points, recipient=lines)
        show_row(client.put(path, client.get(path) | dict(fields)), as_json=as_json)
