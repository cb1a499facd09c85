"""Validate: decode a body into a request that follows its schema, and keep who sent it and when."""

import re
from datetime import datetime
from typing import Generic, TypeVar

import msgspec

from gateway.domain.catalog import Catalog, TierTerms
from gateway.domain.principal import Principal
from gateway.http.errors import InvalidRequest
from gateway.inference.exchange import Exchange
from gateway.inference.server_tools.request import check_chat
from protocol.checks import check_request, decode_body
from protocol.legacy import modern
from protocol.requests import CompletionRequest, GenerationRequest, PlatformChatRequest

_CHAT = msgspec.json.Decoder(PlatformChatRequest)
_TEXT = msgspec.json.Decoder(CompletionRequest)
CHAT_PATH, TEXT_PATH = "/v1/chat/completions", "/v1/completions"
MAX_CLIENT_ID_CHARS = 128
SESSION_HEADER = b"x-session-id"
_SESSION_ID = re.compile(r"[A-Za-z0-9._:~-]{1,128}")

RequestT_co = TypeVar("RequestT_co", covariant=True)


class Accepted(msgspec.Struct, Generic[RequestT_co], frozen=True):
    request_id: str
    client_request_id: str | None
    path: str
    """The path that a member is asked."""
    principal: Principal
    tier: TierTerms
    catalog: Catalog
    """One snapshot for the whole request, so that an administrator's change cannot apply to only part of it."""
    body: bytes
    """As the client sent it."""
    request: RequestT_co
    received_at: datetime
    received_monotonic_s: float
    authenticate_ms: float
    """From arrival until the key was authenticated."""
    session_id: str | None = None
    endpoint: str | None = None
    """The path that the client asked, if it is not `path`."""
    batch_id: str | None = None
    """The batch that the request is a line of."""
    is_repeatable: bool = False
    """Sent under an idempotency key."""


AcceptedGeneration = Accepted[GenerationRequest]


def validate(exchange: Exchange, body: bytes) -> GenerationRequest:
    """Raises ProtocolError or InvalidRequest, naming the field. A chat in a session is checked later, when the stored
    messages are added."""
    if exchange.path == CHAT_PATH:
        chat = decode_body(body, _CHAT)
        if SESSION_HEADER in exchange.headers:
            return chat
        check_chat(chat)
        return modern(chat)
    refuse_session(exchange)
    text = decode_body(body, _TEXT)
    check_request(text)
    return text


def session_id_of(exchange: Exchange) -> str | None:
    """Raises InvalidRequest."""
    value = exchange.headers.get(SESSION_HEADER)
    return None if value is None else check_session_id(value.decode("latin-1"), param="X-Session-Id")


def check_session_id(session_id: str, *, param: str) -> str:
    if _SESSION_ID.fullmatch(session_id) is None:
        raise InvalidRequest(
            f"a session id has 1 to 128 letters, digits and - _ . : ~, this one {len(session_id)} characters",
            param=param,
        )
    return session_id


def refuse_session(exchange: Exchange) -> None:
    if SESSION_HEADER in exchange.headers:
        raise InvalidRequest("sessions are for chat completions; leave the header out", param="X-Session-Id")


def client_request_id(exchange: Exchange) -> str | None:
    value = exchange.headers.get(b"x-client-request-id")
    if value is not None and len(value) > MAX_CLIENT_ID_CHARS:
        raise InvalidRequest(f"at most {MAX_CLIENT_ID_CHARS} characters", param="X-Client-Request-Id")
    return None if value is None else value.decode("latin-1")
