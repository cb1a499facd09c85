"""Trying models and adapters side by side, under the visitor's own key."""

from collections.abc import Sequence

import msgspec
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response

from gateway.clock import utc_now
from gateway.dashboard.pages import EVERYBODY, FormPage
from gateway.dashboard.playground_answer import Answer, Asking, StreamedAnswer, answer_all
from gateway.dashboard.playground_request import COLUMNS, Asked, Turn, read_asked, read_history
from gateway.dashboard.rendering import render
from gateway.dashboard.typed import Form, Typed
from gateway.dashboard.visitors import Visitor
from gateway.domain.principal import Principal
from gateway.http.errors import Forbidden, InvalidRequest
from gateway.inference.models import visible_models
from gateway.services import Services
from router.fleet import AUTO

PATH = "/dashboard/playground"
_KEPT = (*COLUMNS, "system", "temperature", "max_tokens", "top_p", "seed")


async def show_playground(request: Request, services: Services, visitor: Visitor, typed: Typed) -> Response:
    _require_inference(visitor)
    names = _names(services, visitor.principal)
    asked = request.query_params.get("model", "")
    standing = {COLUMNS[0]: asked if asked in names else next(iter(names), "")}
    history = typed.text("history") if "history" not in typed.problems else ""
    return _page(visitor, names, Form(typed, standing), history, read_history(Typed({"history": [history]})), ())


async def answer_page(request: Request, services: Services, visitor: Visitor, typed: Typed) -> Response:
    """For browsers without scripts: the whole answers on the next page."""
    asked = read_asked(typed)
    answers = await answer_all(_askings(request, services, visitor, asked), request.receive)
    said = {answer.column: answer.text for answer in answers}
    turns = [*asked.history, Turn(asked.prompt, [said.get(column, "") for column in range(len(COLUMNS))])]
    is_answered = any(said.values())
    standing = {name: typed.text(name) for name in _KEPT} | {"prompt": "" if is_answered else asked.prompt}
    history = msgspec.json.encode(turns if is_answered else asked.history).decode()
    names = _names(services, visitor.principal)
    return _page(visitor, names, Form(Typed(), standing), history, asked.history, answers, prompt=asked.prompt)


async def stream_answer(request: Request, services: Services, visitor: Visitor, typed: Typed) -> Response:
    """The answer of the one model in the form's `column`, for playground.js."""
    askings = _askings(request, services, visitor, read_asked(typed))
    column = typed.text("column")
    if column not in {str(each) for each in askings}:
        raise InvalidRequest("there is no model in this column", param="column")
    return StreamedAnswer(askings[int(column)])


async def tell_problem(request: Request, services: Services, visitor: Visitor, typed: Typed) -> Response:
    """Why a stream did not begin, as text for the script to show."""
    if not typed.is_sent:
        return RedirectResponse(PATH, 303)
    return PlainTextResponse(" ".join(typed.problems.values()), typed.status)


def _require_inference(visitor: Visitor) -> None:
    if "inference" not in visitor.principal.scopes:
        raise Forbidden(
            "the playground sends requests under the key that you logged in with, and this key lacks the scope "
            "inference; log in with one that has it"
        )


def _askings(request: Request, services: Services, visitor: Visitor, asked: Asked) -> dict[int, Asking]:
    _require_inference(visitor)
    origin = str(request.base_url).rstrip("/")
    client = request.scope.get("client")
    return {
        column: Asking(services, visitor.principal, origin, client, asked.body(column)) for column, _ in asked.models
    }


def _names(services: Services, principal: Principal) -> dict[str, str]:
    """Name of each chat model or adapter that this key may ask -> its label."""
    cards = visible_models(services.registry.fleet, services.catalog.current, principal, now=utc_now())
    chats = [card for card in cards if card.kind == "chat"]
    return {card.id: _label(card.id, card.root, card.parent) for card in chats}


def _label(name: str, root: str | None, parent: str | None) -> str:
    if name == AUTO:
        return "auto (the router chooses)"
    if parent is not None:
        return f"{name} (adapter)"
    return name if root in (None, name) else f"{name} ({root})"


def _page(
    visitor: Visitor,
    names: dict[str, str],
    form: Form,
    history: str,
    turns: Sequence[Turn],
    answers: Sequence[Answer],
    *,
    prompt: str = "",
) -> Response:
    return render(
        "playground.html",
        visitor=visitor,
        names=names,
        columns=COLUMNS,
        form=form,
        history=history,
        turns=turns,
        answers=answers,
        prompt=prompt,
    )


PAGES = (
    FormPage("/playground", show_playground, answer_page, who=EVERYBODY, label="Playground", also="inference"),
    FormPage("/playground/answer", tell_problem, stream_answer, who=EVERYBODY),
)
