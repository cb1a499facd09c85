"""Query strings: a parameter that the route does not take is refused, like an unknown field in a body."""

from starlette.requests import Request

from gateway.http.errors import InvalidRequest
from protocol.stored_fields import STORED


def refuse_other_query(request: Request) -> None:
    """A dependency of a router. Raises InvalidRequest."""
    known = {field.alias for field in request.scope["route"].dependant.query_params}
    for sent, value in request.query_params.multi_items():
        # OpenAI's clients send lists as `include[]`.
        name = sent.partition("[")[0][:64]
        if name in known or (name, value) == ("stream", "false"):
            continue
        refusal = STORED.refusal_of(name, "")
        if refusal is not None:
            raise InvalidRequest(refusal[1], param=name, code="unsupported")
        raise InvalidRequest(f"{name}: there is no such parameter", param=name)
