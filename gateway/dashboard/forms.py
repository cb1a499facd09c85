"""Forms that act: only from our own page, and never by GET. A refused form is shown again as it was typed."""

from collections.abc import Mapping
from types import MappingProxyType
from urllib.parse import urlencode

from pydantic import ValidationError
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from gateway.admin.adapter_forms import form_upload
from gateway.dashboard.cookies import is_one_of
from gateway.dashboard.links import LOGIN
from gateway.dashboard.notices import NOTICES
from gateway.dashboard.pages import FormPage, UploadPage
from gateway.dashboard.rendering import render
from gateway.dashboard.typed import TOKEN, Form, Typed, is_own_form, read_typed
from gateway.dashboard.visitors import Visitor
from gateway.http.errors import BodyTooLarge, Forbidden, GatewayError, InvalidRequest
from gateway.http.forms import is_form
from gateway.services import Services


def require_own(request: Request, visitor: Visitor, token: str) -> None:
    """Raises Forbidden for a form that does not come from a page of this visit."""
    if not is_own_form(request):
        raise Forbidden("this form was sent from another site")
    if not is_one_of(token, visitor.form_tokens):
        raise Forbidden("the page was older than your login, so nothing was done; send it again")


async def submit(page: FormPage, request: Request, services: Services, visitor: Visitor) -> Response:
    """The answer of `page.act`; if it refuses, the same form with the problems, or a problem page where the form cannot
    be shown any more. Raises BodyTooLarge."""
    typed = await read_typed(request)
    try:
        require_own(request, visitor, typed.text(TOKEN))
        return await page.act(request, services, visitor, typed)
    except (GatewayError, ValidationError) as error:
        refused = typed.refused(error)
    return await _show_again(page, request, services, visitor, refused)


async def submit_upload(page: UploadPage, request: Request, services: Services, visitor: Visitor) -> Response:
    """Like `submit`. Files are read only once the fields before them prove that the form is the page's own."""
    typed = Typed(is_sent=True)
    try:
        if not is_form(request.scope):
            raise InvalidRequest("send the form of this page")
        async with form_upload(request) as upload:
            fields = await upload.fields()
            typed = Typed({name: [value] for name, value in fields.items()}, is_sent=True)
            require_own(request, visitor, typed.text(TOKEN))
            return await page.act(request, services, visitor, typed, upload)
    except (GatewayError, ValidationError) as error:
        refused = typed.refused(error)
    return await _show_again(page, request, services, visitor, refused)


async def _show_again(
    page: FormPage | UploadPage, request: Request, services: Services, visitor: Visitor, refused: Typed
) -> Response:
    try:
        return await page.show(request, services, visitor, refused)
    except GatewayError as error:
        return problem_page(visitor, error, typed=refused)


def problem_page(
    visitor: Visitor,
    error: GatewayError,
    *,
    typed: Typed | None = None,
    asked: Mapping[str, str] = MappingProxyType({}),
) -> Response:
    """Shows the error with what was typed, so that the input is not lost where its form cannot be shown any more.

    asked: the query of a page that only shows something, for the visitor to correct and send again.
    """
    return render(
        "problem.html",
        status=error.status,
        headers=error.headers(),
        visitor=visitor,
        problem=error.message,
        typed=typed.shown() if typed else {},
        asked=asked,
    )


async def ended_page(request: Request) -> Response:
    """The answer to a form whose visit has ended: what was typed, and the way back to the filled-in form.

    The form keeps its token, which no visit has any more. Sent again, it does nothing but show the form filled in.
    """
    try:
        typed = await read_typed(request)
    except BodyTooLarge:
        typed = Typed()
    path = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    fields = {TOKEN: [""], **typed.fields}
    return render("ended.html", status=401, path=path, login=LOGIN, fields=fields, typed=typed.shown())


def back_to(path: str, notice: str) -> RedirectResponse:
    """Redirect to where the visitor sees what was done, with a notice of NOTICES."""
    assert notice in NOTICES
    return see_other(f"{path}{'&' if '?' in path else '?'}{urlencode({'notice': notice})}")


def see_other(path: str) -> RedirectResponse:
    return RedirectResponse(path, 303)


def confirmation(
    visitor: Visitor,
    typed: Typed,
    *,
    title: str,
    text: str,
    button: str,
    back: str,
    back_label: str,
    carried: Mapping[str, str] = MappingProxyType({}),
) -> Response:
    """A page that asks for confirmation. Its form goes to the page's own path. carried: further fields of the form."""
    return render(
        "confirm.html",
        visitor=visitor,
        form=Form(typed),
        title=title,
        text=text,
        button=button,
        back=back,
        back_label=back_label,
        carried=carried,
    )
