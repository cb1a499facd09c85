"""What a visitor typed into a form, and what is wrong with it."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import parse_qs, urlsplit

from pydantic import ValidationError
from starlette.requests import Request

from gateway.dashboard.numbers import money
from gateway.http.errors import BodyTooLarge, Conflict, GatewayError

MAX_FORM_BYTES = 256 * 1024
TOKEN, SEEN = "token", "seen"
"""Fields that every form carries: its session's token, and the values of its fields before anything was typed."""
CHECKED = "yes"
Standing = Mapping[str, str | Sequence[str]]
"""Field -> its stored value; a ticked box holds CHECKED."""


class Stale(Conflict):
    """Somebody else changed what the form was about to change. problems: field -> message with its value now."""

    def __init__(self, problems: Mapping[str, str]) -> None:
        super().__init__("this was changed elsewhere while you typed; look at the marked fields, and send it again")
        self.problems = problems


@dataclass(frozen=True)
class Typed:
    """A sent form; empty before one was sent."""

    fields: Mapping[str, Sequence[str]] = field(default_factory=dict)
    problems: Mapping[str, str] = field(default_factory=dict)
    """Field -> message; "" for the whole form."""
    status: int = 200
    is_sent: bool = False

    def text(self, name: str) -> str:
        """Without surrounding blanks; "" if nothing was sent."""
        return (self.fields.get(name) or ("",))[0].strip()

    def all(self, name: str) -> list[str]:
        return list(self.fields.get(name, ()))

    def lines(self, name: str) -> list[str] | None:
        """One entry per non-blank line; None if there are none."""
        return [line.strip() for line in self.text(name).splitlines() if line.strip()] or None

    def is_checked(self, name: str) -> bool:
        return CHECKED in self.all(name)

    def shown(self) -> dict[str, str]:
        """What the visitor typed, and would not want to type again."""
        return {name: ", ".join(values) for name, values in self.fields.items() if name not in (TOKEN, SEEN)}

    def refused(self, error: GatewayError | ValidationError) -> "Typed":
        if isinstance(error, ValidationError):
            return replace(self, problems=self._places(error), status=400)
        problems = {name: _sentence(told) for name, told in error.problems.items()} if isinstance(error, Stale) else {}
        name = error.param if error.param and not problems else ""
        return replace(self, problems={name: _sentence(error.message), **problems}, status=error.status)

    def _places(self, error: ValidationError) -> dict[str, str]:
        """Field -> its problem. A problem within a list is reported at the list."""
        found: dict[str, str] = {}
        for each in error.errors(include_url=False):
            path = [str(part) for part in each["loc"]]
            while len(path) > 1 and ".".join(path) not in self.fields:
                path.pop()
            found.setdefault(".".join(path), _sentence(_message(each, is_money="nanousd" in path[-1])))
        return found


_MESSAGES = {
    "missing": "this is needed",
    "string_too_short": "this is needed",
    "int_type": "write a whole number, such as 5000",
    "float_type": "write a number, such as 0.25",
    "datetime_type": "write a time, such as 2026-01-31T12:00",
}
_PATTERNS = {
    r"^\d{4}-\d\d$": "write a month, such as 2026-05",
    r"^[A-Za-z0-9_.-]+$": "write letters, digits, and _ . - alone",
}


@dataclass(frozen=True)
class Form:
    """What a page's fields show: what was typed, or the stored values before a form was sent."""

    typed: Typed
    standing: Standing = field(default_factory=dict)

    def value(self, name: str) -> str:
        if self.typed.is_sent:
            return self.typed.fields.get(name, ("",))[0]
        value = self.standing.get(name, "")
        return value if isinstance(value, str) else "\n".join(value)

    def has(self, name: str, choice: str = CHECKED) -> bool:
        """Whether this box is ticked, or this choice chosen."""
        if self.typed.is_sent:
            return choice in self.typed.fields.get(name, ())
        value = self.standing.get(name, "")
        return choice == value if isinstance(value, str) else choice in value

    @property
    def problems(self) -> Mapping[str, str]:
        return self.typed.problems

    @property
    def first_problem(self) -> str:
        """The first field with a problem, which gets the focus."""
        return next((name for name in self.typed.problems if name), "")

    @property
    def seen(self) -> str:
        return json.dumps({name: _plain(value) for name, value in self.standing.items()}, ensure_ascii=False)


def changed_fields(typed: Typed, standing: Standing) -> set[str]:
    """The fields whose values differ from what the form had shown.

    Raises Stale if a stored value is not what the form had shown. Two changes at the same moment go unnoticed: then the
    later one wins, but only in the fields that both changed.
    """
    now = {name: _plain(value) for name, value in standing.items()}
    seen = _seen(typed)
    sent = {name: _sent(typed, name, like=value) for name, value in now.items()}
    moved = [name for name, value in now.items() if seen.get(name, value) != value]
    if moved:
        raise Stale({name: f"now it is {_told(now[name])}; you typed {_told(sent[name])}" for name in moved})
    return {name for name, value in now.items() if sent[name] != value}


async def read_typed(request: Request) -> Typed:
    """Raises BodyTooLarge."""
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_FORM_BYTES:
            raise BodyTooLarge(MAX_FORM_BYTES)
    try:
        fields = parse_qs(body.decode(errors="replace"), keep_blank_values=True, max_num_fields=1000)
    except ValueError:
        raise BodyTooLarge(MAX_FORM_BYTES) from None
    return Typed(fields, is_sent=True)


def is_own_form(request: Request) -> bool:
    """Whether a form came from our own site. Browsers say so; other clients cannot be tricked into sending one."""
    site, origin = request.headers.get("sec-fetch-site"), request.headers.get("origin")
    if site is not None:
        return site in ("same-origin", "none")
    return origin is None or urlsplit(origin).netloc == request.headers.get("host")


def _seen(typed: Typed) -> dict[str, Any]:
    try:
        found = json.loads(typed.text(SEEN))
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _plain(value: str | Sequence[str]) -> str | list[str]:
    """The value in the form in which it is compared: choices have no order, and browsers send CRLF line breaks."""
    return value.strip().replace("\r\n", "\n") if isinstance(value, str) else sorted(value)


def _sent(typed: Typed, name: str, *, like: str | list[str]) -> str | list[str]:
    return _plain(typed.text(name) if isinstance(like, str) else typed.all(name))


def _told(value: str | list[str]) -> str:
    text = value if isinstance(value, str) else ", ".join(value)
    return f"\u201c{text}\u201d" if text else "empty"


def _message(problem: Any, *, is_money: bool) -> str:
    """The message for one of pydantic's errors. Money is typed in dollars."""
    if is_money and problem["type"] == "int_type":
        return "write dollars, such as 12.50, with at most nine places"
    if is_money and problem["type"] == "less_than_equal":
        return f"write at most {money(problem['ctx']['le'])}"
    if problem["type"] == "string_pattern_mismatch" and problem["ctx"]["pattern"] in _PATTERNS:
        return _PATTERNS[problem["ctx"]["pattern"]]
    known = _MESSAGES.get(problem["type"])
    return known or str(problem["msg"]).removeprefix("Value error, ").removeprefix("Input ")


def _sentence(message: str) -> str:
    return f"{message[:1].upper()}{message[1:]}" + ("" if message.endswith((".", "?", "!")) else ".")
