"""Turns failures of the router and of members into the errors that clients are told."""

import logging

import msgspec

from gateway.http.errors import (
    Forbidden,
    GatewayError,
    InvalidRequest,
    ModelNotFound,
    Saturated,
    Unavailable,
    UpstreamFailed,
    UpstreamRefused,
)
from gateway.upstream.client import MemberFailed, MemberRefused
from protocol.context_window import CONTEXT_LENGTH_EXCEEDED
from protocol.errors import ErrorBody, encode_error
from protocol.foreign_json import UNREADABLE
from router import errors as route_errors
from router.fleet import Member

_log = logging.getLogger(__name__)
_ERROR_BODY = msgspec.json.Decoder(ErrorBody)


def as_gateway_error(error: route_errors.RouteError, model: str) -> GatewayError:
    match error:
        case route_errors.UnknownModel():
            return ModelNotFound(model)
        case route_errors.PoolNotAllowed():
            return Forbidden(str(error), param="model")
        case route_errors.DoesNotFit():
            return InvalidRequest(str(error), param="max_tokens", code=CONTEXT_LENGTH_EXCEEDED)
        case route_errors.Saturated():
            return Saturated(str(error), retry_after_s=error.retry_after_s)
        case _:
            return Unavailable(str(error), retry_after_s=2)


def as_refusal(error: MemberRefused, *, sent_model: str, shown_model: str) -> UpstreamRefused:
    """The member's own error body if it has OpenAI's format, with the model renamed to the name the client knows."""
    try:
        _ERROR_BODY.decode(error.body)
    except UNREADABLE:
        message = f"the model's server refused the request with status {error.status}"
        return UpstreamRefused(error.status, encode_error(message, type="invalid_request_error"))
    body = error.body
    if sent_model != shown_model:
        body = body.replace(_escaped(sent_model), _escaped(shown_model))
    return UpstreamRefused(error.status, body)


def as_broken_off(body: bytes, member: Member, *, sent_model: str, shown_model: str) -> UpstreamRefused:
    """An error in the middle of an answer. The error of one of our own workers is passed on. The error of another
    server is logged instead, since it may hold details that the client should not see."""
    if member.engine == "tiergate":
        return as_refusal(MemberRefused(502, body), sent_model=sent_model, shown_model=shown_model)
    _log.warning("%s broke an answer off: %.500r", member.worker_id, body)
    message = "the model's server broke its answer off; the request may be sent again"
    return UpstreamRefused(502, encode_error(message, type=UpstreamFailed.type, code=UpstreamFailed.code))


def as_failure(error: MemberFailed) -> GatewayError:
    """The client's error after the last replica that could be tried has failed."""
    if error.is_missing:
        return Unavailable("no replica serves this model right now", retry_after_s=2)
    if error.retry_after_s is not None:
        return Saturated("every replica that may serve this request is busy", retry_after_s=error.retry_after_s)
    return UpstreamFailed("the model's server failed; the request may be sent again")


def failure_kind(error: MemberFailed, *, is_delivered: bool) -> str:
    """The failure's label in metrics."""
    if is_delivered:
        return "broke_off"
    if error.is_missing:
        return "missing"
    if error.retry_after_s is not None:
        return "busy"
    return "gave_up" if error.is_reachable else "unreachable"


def _escaped(name: str) -> bytes:
    """The name as it is written inside a JSON string."""
    return msgspec.json.encode(name)[1:-1]
