"""The same page as the HTML one, rendered by ReportLab: pure Python, without a browser or system libraries.

ReportLab's built-in fonts cover Western European letters; the operator may configure a TrueType font for others.
"""

from io import BytesIO
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from gateway.billing.documents import texts
from gateway.domain.invoices.models import Invoice, InvoiceLine
from gateway.domain.money import dollars

_FONT = "TiergateInvoice"
_HEAD = ("Description", "Month", "Requests", "Quantity", "USD per million", "Amount (USD)")
_WIDTHS_MM = (60, 16, 18, 22, 30, 32)


def as_pdf(invoice: Invoice, *, font: Path | None = None) -> bytes:
    """The PDF; always the same bytes for the same invoice."""
    # Imported here, so that a gateway that never prints an invoice does not load it.
    from reportlab.lib.pagesizes import A4
    from reportlab.lib.units import mm
    from reportlab.platypus import Paragraph, SimpleDocTemplate, Spacer

    target = BytesIO()
    page = SimpleDocTemplate(
        target,
        pagesize=A4,
        topMargin=18 * mm,
        bottomMargin=18 * mm,
        leftMargin=16 * mm,
        rightMargin=16 * mm,
        title=texts.title(invoice),
        invariant=1,
    )
    name = _font_name(font)
    style, small, title, right = _styles(name)
    known = _Drawable(is_any=font is not None)
    about = (
        ("To", known.text(invoice.recipient).replace("\n", "<br/>")),
        ("Date", texts.day(invoice.finalized_at or invoice.calculated_at, invoice)),
        ("Period", known.text(texts.period(invoice))),
    )
    page.build(
        [
            Paragraph(known.text(texts.title(invoice)), title),
            Spacer(0, 6 * mm),
            *(Paragraph(f"<font color='#666666'>{label}</font>&nbsp;&nbsp; {text}", style) for label, text in about),
            Spacer(0, 6 * mm),
            _lines(invoice, known, style, right, name),
            Spacer(0, 4 * mm),
            _sums(invoice, known, style, right, name),
            Spacer(0, 8 * mm),
            Paragraph("Amounts are exact; only discounts and tax are rounded, to a billionth of a dollar.", small),
        ]
    )
    return target.getvalue()


class _Drawable:
    """Escapes text as paragraph markup. A character that the font lacks becomes a question mark, not nothing."""

    def __init__(self, *, is_any: bool) -> None:
        self._is_any = is_any

    def text(self, text: str) -> str:
        return escape(text if self._is_any else text.encode("cp1252", "replace").decode("cp1252"))


def _font_name(font: Path | None) -> str:
    from reportlab.pdfbase import pdfmetrics
    from reportlab.pdfbase.ttfonts import TTFont

    if font is None:
        return "Helvetica"
    if _FONT not in pdfmetrics.getRegisteredFontNames():
        pdfmetrics.registerFont(TTFont(_FONT, str(font)))
    return _FONT


def _styles(font: str) -> tuple[Any, Any, Any, Any]:
    from reportlab.lib.enums import TA_RIGHT
    from reportlab.lib.styles import ParagraphStyle

    style = ParagraphStyle("text", fontName=font, fontSize=9, leading=12)
    small = ParagraphStyle("small", parent=style, fontSize=8, textColor="#666666")
    title = ParagraphStyle("title", parent=style, fontSize=18, leading=22)
    return style, small, title, ParagraphStyle("right", parent=style, alignment=TA_RIGHT)


def _lines(invoice: Invoice, known: _Drawable, style: Any, right: Any, font: str) -> Any:
    from reportlab.lib.units import mm
    from reportlab.platypus import Paragraph, Table

    rows = [[Paragraph(text, style if column < 2 else right) for column, text in enumerate(_HEAD)]]
    for line in invoice.lines:
        cells = _cells(line)
        rows.append([Paragraph(known.text(text), style if column < 2 else right) for column, text in enumerate(cells)])
    if not invoice.lines:
        rows.append([Paragraph("No usage in this period.", style), "", "", "", "", ""])
    # The header row repeats on every page.
    return Table(rows, colWidths=[width * mm for width in _WIDTHS_MM], repeatRows=1, style=_rules(font))


def _cells(line: InvoiceLine) -> tuple[str, ...]:
    return (
        line.description,
        line.month,
        f"{line.num_requests:,}" if line.num_requests else "",
        texts.quantity(line),
        texts.unit_price(line),
        dollars(line.amount_nanousd),
    )


def _sums(invoice: Invoice, known: _Drawable, style: Any, right: Any, font: str) -> Any:
    from reportlab.lib.units import mm
    from reportlab.platypus import Paragraph, Table

    rows = [[Paragraph(known.text(label), style), Paragraph(amount, right)] for label, amount in texts.sums(invoice)]
    return Table(rows, colWidths=[60 * mm, 40 * mm], hAlign="RIGHT", style=_rules(font))


def _rules(font: str) -> list[tuple[Any, ...]]:
    whole = (0, 0), (-1, -1)
    return [
        ("FONTNAME", *whole, font),
        ("VALIGN", *whole, "TOP"),
        ("LINEBELOW", *whole, 1, "#cccccc"),
        ("TOPPADDING", *whole, 2),
        ("BOTTOMPADDING", *whole, 2),
    ]
