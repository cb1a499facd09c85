"""The one place where errors are rendered to bytes, in OpenAI's format on every path."""

import logging
import re
from http import HTTPStatus
from typing import cast

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from gateway.http.errors import (
    GatewayError,
    InvalidRequest,
    MethodNotAllowed,
    NotFound,
    UnsupportedEndpoint,
    UpstreamRefused,
)
from gateway.http.methods import allowed_methods
from protocol.accounting import data_event
from protocol.errors import ProtocolError, encode_error

_log = logging.getLogger(__name__)

# Parts of OpenAI's API below /v1 that we do not serve. Of `organization` we serve usage and costs.
_UNSUPPORTED = frozenset(
    {
        "images",
        "audio",
        "assistants",
        "threads",
        "uploads",
        "moderations",
    }
    | {"fine_tuning", "vector_stores", "realtime", "conversations", "containers", "evals", "videos", "organization"}
    | {"chatkit", "skills"}
)
_UNSUPPORTED_PATHS = re.compile(r"/v1/(responses/([^/]+/cancel|compact|input_tokens)|chat/completions/.+)")
"""Unsupported paths below resources that we do serve."""


def error_body(error: Exception) -> bytes:
    """The JSON body. An exception other than our error classes is a bug; its details are hidden from the client."""
    if isinstance(error, UpstreamRefused):
        return error.body
    if isinstance(error, GatewayError | ProtocolError):
        return encode_error(error.message, type=error.type, param=error.param, code=error.code)
    return encode_error(
        "an internal error; the request id finds it in our log", type="server_error", code="internal_error"
    )


def error_status(error: Exception) -> int:
    return error.status if isinstance(error, GatewayError | ProtocolError) else 500


def error_code(error: Exception) -> str | None:
    return error.code if isinstance(error, GatewayError | ProtocolError) else GatewayError.code


def error_headers(error: Exception) -> dict[str, str]:
    headers = error.headers() if isinstance(error, GatewayError) else {}
    return {"content-type": "application/json", **headers}


def error_event(error: Exception) -> bytes:
    """The error as an event in a stream that has begun."""
    return data_event(error_body(error))


def error_response(error: Exception) -> Response:
    return Response(error_body(error), error_status(error), error_headers(error))


def install_error_handlers(app: FastAPI) -> None:
    app.add_exception_handler(GatewayError, _render)
    app.add_exception_handler(ProtocolError, _render)
    app.add_exception_handler(RequestValidationError, _render_validation)
    app.add_exception_handler(HTTPException, _render_http)
    app.add_exception_handler(Exception, _render_bug)


async def _render(_request: Request, error: Exception) -> Response:
    return error_response(error)


async def _render_validation(_request: Request, error: Exception) -> Response:
    first = cast(RequestValidationError, error).errors()[0]
    if first["type"] == "json_invalid":
        return error_response(_invalid_json())
    path = [str(part) for part in first["loc"] if part not in ("body", "query", "path")]
    param = ".".join(path) or None
    # pydantic puts this prefix before the messages of our own checks.
    message = first["msg"].removeprefix("Value error, ")
    return error_response(InvalidRequest(f"{param or 'body'}: {message}", param=param))


async def _render_http(request: Request, error: Exception) -> Response:
    status = cast(HTTPException, error).status_code
    response = error_response(_http_error(request, status))
    response.headers.update(cast(HTTPException, error).headers or {})
    if response.status_code == 405:
        response.headers["allow"] = ", ".join(allowed_methods(request.app.routes, request.scope))
    return response


async def _render_bug(request: Request, error: Exception) -> Response:
    _log.error("%s %s failed", request.method, request.url.path, exc_info=error)
    response = error_response(error)
    # The server closes the connection now. Without this header the client would lose its next request on it.
    response.headers["connection"] = "close"
    return response


def _invalid_json() -> InvalidRequest:
    return InvalidRequest("the body is not valid JSON in UTF-8", code="invalid_json")


def _http_error(request: Request, status: int) -> GatewayError:
    path = request.url.path
    parts = path.strip("/").split("/")
    if status == 404 and parts[0] == "v1" and len(parts) > 1 and parts[1] in _UNSUPPORTED:
        return UnsupportedEndpoint(path)
    if status in (404, 405) and _UNSUPPORTED_PATHS.fullmatch(path) is not None:
        return UnsupportedEndpoint(path)
    if status == 404:
        return NotFound(f"there is no {path} here")
    if status == 405:
        return MethodNotAllowed(f"{path} does not take {request.method}")
    if status == 400:
        # Only FastAPI raises this, for a body that it cannot parse.
        return _invalid_json()
    other = InvalidRequest(HTTPStatus(status).phrase) if status < 500 else GatewayError(HTTPStatus(status).phrase)
    other.status = status
    return other
