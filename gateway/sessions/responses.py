"""Responses as they are kept: beside sessions, and in their form."""

from datetime import datetime

import msgspec


class ResponseMeta(msgspec.Struct, kw_only=True):
    id: str
    created_at: datetime


class StoredResponse(msgspec.Struct, kw_only=True):
    """messages: the conversation up to its answer, for the response that goes on from it; no instructions."""

    response: msgspec.Raw
    input_items: list[msgspec.Raw]
    messages: list[msgspec.Raw]
