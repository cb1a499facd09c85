"""The figures of an invoice as the texts that its documents show."""

from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

from gateway.domain.invoices.models import Invoice, InvoiceLine
from gateway.domain.money import WHOLE, dollars

_MILLION = 10**6
_PER_REQUEST = ("minimum", "discount", "cached_answer")


def title(invoice: Invoice) -> str:
    name = "Credit note" if invoice.kind == "credit_note" else "Invoice"
    return f"{name} {invoice.number}" if invoice.number else f"{name} (draft)"


def day(moment: datetime, invoice: Invoice) -> str:
    return f"{moment.astimezone(ZoneInfo(invoice.time_zone)):%Y-%m-%d}"


def period(invoice: Invoice) -> str:
    """First and last day; with times if the period does not begin and end at midnight."""
    zone = ZoneInfo(invoice.time_zone)
    start, end = invoice.period_start.astimezone(zone), invoice.period_end.astimezone(zone)
    if (start.hour, start.minute, end.hour, end.minute) == (0, 0, 0, 0):
        return f"{start:%Y-%m-%d} to {end - timedelta(days=1):%Y-%m-%d} ({invoice.time_zone})"
    return f"{start:%Y-%m-%d %H:%M:%S} to {end:%Y-%m-%d %H:%M:%S} ({invoice.time_zone})"


def unit_price(line: InvoiceLine) -> str:
    """Price of a million tokens; empty for a line whose price varies between requests."""
    if line.kind == "credit" or line.kind in _PER_REQUEST or not line.unit_price_nanousd:
        return ""
    return dollars(line.unit_price_nanousd * _MILLION)


def quantity(line: InvoiceLine) -> str:
    return "" if line.kind == "credit" else f"{line.quantity:,}"


def tax_label(invoice: Invoice) -> str:
    whole, rest = divmod(invoice.tax_basis_points * 100, WHOLE)
    percent = f"{whole}.{rest:04}".rstrip("0").rstrip(".")
    return f"{invoice.tax_name or 'Tax'} {percent} %"


def sums(invoice: Invoice) -> list[tuple[str, str]]:
    """The lines below the table: label and amount."""
    found = [("Subtotal", dollars(invoice.subtotal_nanousd))]
    if invoice.tax_basis_points:
        found.append((tax_label(invoice), dollars(invoice.tax_nanousd)))
    found.append(("Total", dollars(invoice.total_nanousd)))
    if invoice.credit_nanousd > 0:
        found.append(("Paid from prepaid credit", dollars(-invoice.credit_nanousd)))
    elif invoice.credit_nanousd < 0:
        found.append(("Added to your credit", dollars(-invoice.credit_nanousd)))
    found.append(("Amount due (USD)", dollars(invoice.due_nanousd)))
    return found
