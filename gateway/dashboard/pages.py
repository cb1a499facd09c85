"""The building blocks of the console: pages that show something, and forms that act. `routes.py` lists them all."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response

from gateway.admin.adapter_forms import FormUpload
from gateway.dashboard.typed import Typed
from gateway.dashboard.visitors import Visitor
from gateway.domain.principal import SEES_SPENDING, Scope
from gateway.services import Services

Who = tuple[Scope, ...]
"""A visitor needs one of these scopes."""
EVERYBODY: Who = SEES_SPENDING
ADMINS: Who = ("tenant-admin", "platform-admin")
OPERATORS: Who = ("platform-admin",)

View = Callable[[Request, Services, Visitor], Awaitable[Response]]
FormView = Callable[[Request, Services, Visitor, Typed], Awaitable[Response]]

UploadView = Callable[[Request, Services, Visitor, Typed, FormUpload], Awaitable[Response]]


@dataclass(frozen=True)
class Page:
    """A GatewayError that `view` raises is shown as a page."""

    path: str
    """The path below /dashboard, in FastAPI's syntax."""
    view: View
    who: Who = EVERYBODY
    label: str = ""
    """The text in the navigation. Empty: only other pages lead here."""


@dataclass(frozen=True)
class FormPage:
    """GET shows a form, POST acts on it.

    show: renders the form; after a refused POST with what was typed and what is wrong with it.
    act: may raise GatewayError or pydantic's ValidationError, upon which `show` is called again. It is called only with
    the page's own token.
    """

    path: str
    show: FormView
    act: FormView
    who: Who = ADMINS
    label: str = ""
    also: Scope | None = None
    """A further scope. Without it the navigation does not lead here, and the page says that the scope is missing."""


@dataclass(frozen=True)
class UploadPage:
    """Like FormPage, for a form of fields followed by files, which `act` streams on as they arrive."""

    path: str
    show: FormView
    act: UploadView
    who: Who = ADMINS
    label: str = ""


AnyPage = Page | FormPage | UploadPage
