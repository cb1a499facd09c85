import csv
from io import StringIO

from gateway.domain.invoices.models import Invoice

COLUMNS = (
    *("position", "description", "month", "is_adjustment", "model_id", "adapter_id", "kind"),
    *("unit_price_nanousd", "num_requests", "quantity", "amount_nanousd"),
)
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def as_csv(invoice: Invoice) -> str:
    """The lines, then subtotal, tax, total, credit and amount due as separate rows; amounts in nano-dollars."""
    target = StringIO()
    writer = csv.writer(target)
    writer.writerow(("invoice", *COLUMNS))
    name = invoice.number or str(invoice.id)
    for line in invoice.lines:
        writer.writerow((name, *(cell(getattr(line, column)) for column in COLUMNS)))
    for kind in ("subtotal", "tax", "total", "credit", "due"):
        blank = {"kind": kind, "amount_nanousd": getattr(invoice, f"{kind}_nanousd")}
        writer.writerow((name, *(blank.get(column, "") for column in COLUMNS)))
    return target.getvalue()


def cell(value: object) -> object:
    """The value, escaped if a spreadsheet would take it for a formula."""
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value
