"""Crawls the console by following every link."""

import re
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from html.parser import HTMLParser
from urllib.parse import parse_qsl, urljoin, urlsplit

import httpx

HOME = "/dashboard"
_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f-]{27}")


class Links(HTMLParser):
    """The links of one page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.pages: list[str] = []
        self.parts: list[str] = []
        """URLs of its style sheets and scripts."""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag == "a":
            self.pages.append(given.get("href") or "")
        elif tag == "link" and given.get("rel") == "stylesheet":
            self.parts.append(given.get("href") or "")
        elif tag == "script":
            self.parts.append(given.get("src") or "")


@dataclass
class Crawl:
    pages: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    """Kind -> URLs of pages."""
    files: list[str] = field(default_factory=list)
    """URLs of files that are not HTML pages."""
    broken: list[str] = field(default_factory=list)
    """Broken links, each with the status of its answer."""


def by_path(url: str) -> str:
    return _ID.sub("{id}", urlsplit(url).path)


def by_query(url: str) -> str:
    """The kind of a page, by its path and the names of its query parameters."""
    names = sorted({name for name, _ in parse_qsl(urlsplit(url).query)})
    return by_path(url) + (f"?{'&'.join(names)}" if names else "")


async def crawl(http: httpx.AsyncClient, kind_of: Callable[[str], str], *, per_kind: int) -> Crawl:
    """Follow all links from the overview, at most `per_kind` pages of each kind."""
    found = Crawl()
    seen, waiting = {HOME}, [HOME]
    while waiting:
        url = waiting.pop(0)
        urls = found.pages[kind_of(url)]
        if len(urls) >= per_kind:
            continue
        reply = await http.get(url, follow_redirects=True)
        if reply.status_code != 200 or reply.url.path == f"{HOME}/login":
            found.broken.append(f"{url}: {reply.status_code}")
            continue
        if not reply.headers["content-type"].startswith("text/html"):
            found.files.append(url)
            continue
        urls.append(f"{reply.url.raw_path.decode()}" if reply.history else url)
        for link in Links(reply.text).pages:
            target = urlsplit(urljoin(str(reply.url), link))
            path = target.path + (f"?{target.query}" if target.query else "")
            if path.startswith(HOME) and path not in seen:
                seen.add(path)
                waiting.append(path)
    found.pages = {kind: urls for kind, urls in found.pages.items() if urls}
    return found
