"""What the console consists of: pages that show, and forms that do something. `routes.py` lists them all."""

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
"""One of these scopes is needed."""
EVERYBODY: Who = SEES_SPENDING
ADMINS: Who = ("tenant-admin", "platform-admin")
OPERATORS: Who = ("platform-admin",)

View = Callable[[Request, Services, Visitor], Awaitable[Response]]
FormView = Callable[[Request, Services, Visitor, Typed], Awaitable[Response]]

UploadView = Callable[[Request, Services, Visitor, Typed, FormUpload], Awaitable[Response]]


@dataclass(frozen=True)
class Page:
    """Raises GatewayError, which becomes a page that says so."""

    path: str
    """Below /dashboard, as FastAPI has it."""
    view: View
    who: Who = EVERYBODY
    label: str = ""
    """In the navigation; none: other pages lead there."""


@dataclass(frozen=True)
class FormPage:
    """GET shows a form, POST does what it says.

    show: the form, with what was typed into it and what is wrong with that, after a POST that was refused.
    act: raises GatewayError or pydantic's ValidationError, upon which `show` is asked again. It is called only with the
    page's own token.
    """

    path: str
    show: FormView
    act: FormView
    who: Who = ADMINS
    label: str = ""
    also: Scope | None = None
    """Without it the navigation does not lead here, and the page says that it is missing."""


@dataclass(frozen=True)
class UploadPage:
    """As FormPage, for a form of fields and then files, which `act` hands on as they come."""

    path: str
    show: FormView
    act: UploadView
    who: Who = ADMINS
    label: str = ""


AnyPage = Page | FormPage | UploadPage
