"""The console of a real gateway: visits that read its pages and submit its forms as browsers do."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Any

import httpx

from tests.support.gateways import Gateway

Fields = Mapping[str, str | Sequence[str]]


@dataclass
class HtmlForm:
    """The fields that a browser would submit for an untouched form."""

    action: str
    method: str
    fields: dict[str, list[str]] = field(default_factory=dict)


@dataclass(frozen=True)
class Visit:
    http: httpx.AsyncClient

    async def page(self, path: str, *, status: int = 200) -> str:
        reply = await self.http.get(path)
        assert reply.status_code == status, (reply.status_code, reply.text)
        return reply.text

    async def send(self, path: str, fields: Fields | None = None, **typed: str) -> httpx.Response:
        """Submit the page's only form with changed `fields`; returns the answer without following redirects.

        Fields whose names are not identifiers go into `fields`; an empty list unticks all boxes of that name.
        """
        return await self.submit(await self.page(path), path, {**(fields or {}), **typed})

    async def submit(self, page: str, path: str, fields: Fields) -> httpx.Response:
        [form] = [
            each
            for each in forms_of(page)
            if each.method == "post" and "logout" not in each.action and not each.action.endswith("/zone")
        ]
        body: dict[str, str | Sequence[str]] = {**form.fields, **fields}
        return await self.http.post(
            form.action or path, data={name: value for name, value in body.items() if value != []}
        )


@asynccontextmanager
async def visit(gateway: Gateway, key: str) -> AsyncIterator[Visit]:
    async with httpx.AsyncClient(base_url=gateway.origin, timeout=60) as http:
        reply = await http.post("/dashboard/login", data={"key": key})
        assert reply.status_code == 303, reply.text
        yield Visit(http)


async def audited(gateway: Gateway, action: str) -> list[dict[str, Any]]:
    """The audit log's rows of this action, oldest first."""
    rows = (await gateway.admin.get("/audit", params={"limit": 1000})).json()["data"]
    return [row for row in rows if row["action"] == action]


BAD_NAMES = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "W" * 120,
    "\u6f22" * 120,
    "\u05e9\u05dc\u05d5\u05dd \u0639\u0644\u064a\u0643\u0645",
    "\U0001f9ea" * 60,
    "{{ 7 * 7 }} & 'quotes' %s",
]
"""Names that are allowed, and must be shown unchanged."""


def forms_of(page: str) -> list[HtmlForm]:
    reader = _FormReader()
    reader.feed(page)
    return reader.forms


class _FormReader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.forms: list[HtmlForm] = []
        self._select = self._area = ""
        self._text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        match tag:
            case "form":
                self.forms.append(HtmlForm(given.get("action", ""), given.get("method", "get")))
            case "input" if given.get("type") not in ("checkbox", "radio") or "checked" in given:
                self._add(given.get("name", ""), given.get("value", ""))
            case "select":
                self._select = given["name"]
            case "option" if self._select and ("selected" in given or self._select not in self.forms[-1].fields):
                self.forms[-1].fields[self._select] = [given.get("value", "")]
            case "textarea":
                self._area, self._text = given["name"], ""

    def handle_data(self, data: str) -> None:
        if self._area:
            self._text += data

    def handle_endtag(self, tag: str) -> None:
        if tag == "textarea":
            self._add(self._area, self._text.removeprefix("\n"))
            self._area = ""
        elif tag == "select":
            self._select = ""

    def _add(self, name: str, value: str) -> None:
        if name and self.forms:
            self.forms[-1].fields.setdefault(name, []).append(value)
