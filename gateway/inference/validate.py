"""Validate: from a body to a request that keeps its schema, and with it who asks, and when."""

from dataclasses import dataclass
from datetime import datetime
from typing import Generic, TypeVar

import msgspec

from gateway.domain.catalog import Catalog, TierTerms
from gateway.domain.principal import Principal
from gateway.http.errors import InvalidRequest
from gateway.inference.exchange import Exchange
from protocol.checks import check_request, decode_body
from protocol.requests import ChatCompletionRequest, CompletionRequest, GenerationRequest

_CHAT = msgspec.json.Decoder(ChatCompletionRequest)
_TEXT = msgspec.json.Decoder(CompletionRequest)
CHAT_PATH, TEXT_PATH = "/v1/chat/completions", "/v1/completions"
MAX_CLIENT_ID_CHARS = 128

RequestT_co = TypeVar("RequestT_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Accepted(Generic[RequestT_co]):
    request_id: str
    client_request_id: str | None
    path: str
    principal: Principal
    tier: TierTerms
    catalog: Catalog
    """One picture for the whole request, so that an administrator's change does not split it."""
    body: bytes
    """As it was sent."""
    request: RequestT_co
    received_at: datetime
    received_monotonic_s: float
    authenticate_ms: float
    """From the arrival until the key was known."""


AcceptedGeneration = Accepted[GenerationRequest]


def validate(exchange: Exchange, body: bytes) -> GenerationRequest:
    """Raises ProtocolError or InvalidRequest, naming the field."""
    if b"x-session-id" in exchange.headers:
        raise InvalidRequest("sessions are not supported yet; send the whole conversation", param="X-Session-Id")
    is_chat = exchange.path == CHAT_PATH
    request: GenerationRequest = decode_body(body, _CHAT) if is_chat else decode_body(body, _TEXT)
    check_request(request)
    return request


def client_request_id(exchange: Exchange) -> str | None:
    value = exchange.headers.get(b"x-client-request-id")
    if value is not None and len(value) > MAX_CLIENT_ID_CHARS:
        raise InvalidRequest(f"at most {MAX_CLIENT_ID_CHARS} characters", param="X-Client-Request-Id")
    return None if value is None else value.decode("latin-1")
