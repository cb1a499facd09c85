"""A stored conversation: messages as their senders wrote them, in turns that stay whole."""

from collections.abc import Sequence
from datetime import datetime

import msgspec

Raw = msgspec.Raw


class Conversation(msgspec.Struct, kw_only=True):
    messages: list[Raw] = []
    """The system prompt first, if there is one."""
    summary: str | None = None
    """A summary of the messages that have left the window."""
    leaving: list[Raw] = []
    """Messages that have left the window and are to be summarised."""

    @property
    def num_bytes(self) -> int:
        return sum(len(bytes(message)) for message in (*self.messages, *self.leaving))


class Meta(msgspec.Struct, kw_only=True):
    """A session as lists show it. revision: the request or change that wrote it; no two are the same."""

    id: str
    created_at: datetime
    changed_at: datetime
    num_turns: int
    num_messages: int
    num_left: int
    """Messages that left the window."""
    num_bytes: int
    """The size of the messages' JSON, before compression."""
    revision: str


class _Role(msgspec.Struct):
    role: str


_ROLE = msgspec.json.Decoder(_Role)
_MESSAGES = msgspec.json.Decoder(list[Raw])
_SYSTEM = ("system", "developer")


def role_of(message: Raw) -> str:
    return _ROLE.decode(message).role


def raw_messages(text: bytes | Raw) -> list[Raw]:
    """Copies of the messages, because slices would each keep all of `text` alive."""
    return [Raw(bytes(message)) for message in _MESSAGES.decode(text)]


def split_system(messages: Sequence[Raw]) -> tuple[list[Raw], list[Raw]]:
    """The system messages before the conversation, and the conversation."""
    end = next((i for i, message in enumerate(messages) if role_of(message) not in _SYSTEM), len(messages))
    return list(messages[:end]), list(messages[end:])


def split_turns(messages: Sequence[Raw]) -> list[list[Raw]]:
    """A turn begins with a user message. Tool calls and their results stay in it, and so do user messages in a row.

    Messages before the first user message are a turn, too.
    """
    turns: list[list[Raw]] = []
    before = None
    for message in messages:
        role = role_of(message)
        if not turns or (role == "user" and before != "user"):
            turns.append([])
        turns[-1].append(message)
        before = role
    return turns


def describe(
    conversation: Conversation, *, session_id: str, before: Meta | None, num_left: int, revision: str, now: datetime
) -> Meta:
    """num_left: messages that have left the window since `before`."""
    _, rest = split_system(conversation.messages)
    return Meta(
        id=session_id,
        created_at=before.created_at if before else now,
        changed_at=now,
        num_turns=len(split_turns(rest)),
        num_messages=len(conversation.messages),
        num_left=num_left + (before.num_left if before else 0),
        num_bytes=conversation.num_bytes,
        revision=revision,
    )
