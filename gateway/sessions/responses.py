"""Stored responses, kept beside sessions and in the same format."""

from datetime import datetime

import msgspec


class ResponseMeta(msgspec.Struct, kw_only=True):
    id: str
    created_at: datetime


class StoredResponse(msgspec.Struct, kw_only=True):
    """messages: the conversation including this answer, for a response that continues it; no instructions."""

    response: msgspec.Raw
    input_items: list[msgspec.Raw]
    messages: list[msgspec.Raw]
