from functools import cache

from jinja2 import Environment, PackageLoader, StrictUndefined

from gateway.billing.documents import texts
from gateway.domain.invoices.models import Invoice
from gateway.domain.money import dollars


def as_html(invoice: Invoice) -> str:
    """A self-contained page without scripts; long tables repeat their header on each printed sheet."""
    return _environment().get_template("invoice.html").render(invoice=invoice, texts=texts, dollars=dollars)


@cache
def _environment() -> Environment:
    return Environment(
        loader=PackageLoader("gateway.billing.documents"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
