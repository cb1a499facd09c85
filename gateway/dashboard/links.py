"""Links within the console. A link is the page's own query with parts changed, so that a view can be sent to others."""

from collections.abc import Mapping
from urllib.parse import urlencode, urlsplit
from uuid import UUID

from starlette.requests import Request

from gateway.http.errors import NotFound

HOME = "/dashboard"
LOGIN = f"{HOME}/login"


class Query:
    """The query of a page: only the parameters that it knows, and none that are empty."""

    def __init__(self, path: str, given: Mapping[str, str]) -> None:
        self._path = path
        self._given = {name: value for name, value in given.items() if value}

    def __getitem__(self, name: str) -> str:
        return self._given.get(name, "")

    def url(self, path: str = "", **changed: str) -> str:
        """The same query with some parameters changed; an empty value removes one."""
        fields = {name: value for name, value in (self._given | changed).items() if value}
        return f"{path or self._path}?{urlencode(fields)}" if fields else path or self._path

    def hidden(self, *shown: str) -> dict[str, str]:
        """The hidden fields of a form whose visible fields are `shown`."""
        return {name: value for name, value in self._given.items() if name not in shown}


def query_of(path: str, asked: Mapping[str, str], known: tuple[str, ...]) -> Query:
    """The parameters in `known`, and the time zone, which every page takes."""
    return Query(path, {name: asked.get(name, "").strip()[:200] for name in (*known, "tz")})


def own_path(asked: str) -> str:
    """`asked` if it is a path of the console, else its home page: never another site, whatever a link says."""
    parts = urlsplit(asked)
    is_own = not parts.scheme and not parts.netloc and (parts.path == HOME or parts.path.startswith(f"{HOME}/"))
    return asked if is_own and asked.isprintable() and "\\" not in asked else HOME


def path_id(request: Request, name: str) -> UUID:
    """Raises NotFound if the parameter cannot be an id."""
    try:
        return UUID(str(request.path_params[name]))
    except ValueError:
        raise NotFound("there is no such object") from None
