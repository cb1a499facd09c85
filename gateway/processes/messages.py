"""What a parent and its children say to each other, over a socket pair."""

import asyncio
import logging
import struct
from typing import Any

import msgspec

from gateway.metric_snapshots import Snapshot

_log = logging.getLogger(__name__)

_LENGTH = struct.Struct("!I")


class Ready(msgspec.Struct, frozen=True, tag=True):
    """Child: I accept connections."""


class Leaving(msgspec.Struct, frozen=True, tag=True):
    """Child: I accept no more connections and end when the work under way has ended."""


class Measured(msgspec.Struct, frozen=True, tag=True):
    """Child: what I have measured, as an answer to `Measure` or as a last word."""

    own: Snapshot


class Gather(msgspec.Struct, frozen=True, tag=True):
    """Child: what have all of us measured? Here is my part."""

    number: int
    own: Snapshot


class Measure(msgspec.Struct, frozen=True, tag=True):
    """Parent: what have you measured? Also asked to see that the child still turns."""


class Gathered(msgspec.Struct, frozen=True, tag=True):
    """Parent: what all of you have measured."""

    number: int
    all: Snapshot


class StandInFor(msgspec.Struct, frozen=True, tag=True):
    """Parent: accept connections for these slots, too, whose process is away, and for no others."""

    slots: frozenset[int]


class HurryUp(msgspec.Struct, frozen=True, tag=True):
    """Parent: end without waiting for the work under way."""


FromChild = Ready | Leaving | Measured | Gather
FromParent = Measure | Gathered | StandInFor | HurryUp


class Link:
    """One end of the pair. What is sent to somebody who has gone is dropped."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, received: Any) -> None:
        self._reader = reader
        self._writer = writer
        self._decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(received)

    def send(self, message: FromChild | FromParent) -> None:
        if not self._writer.is_closing():
            body = msgspec.msgpack.encode(message)
            self._writer.write(_LENGTH.pack(len(body)) + body)

    async def receive(self) -> Any:
        """The next message, or None after the last.

        What only another version says is skipped: a parent may have children that are newer than itself.
        """
        while True:
            try:
                (length,) = _LENGTH.unpack(await self._reader.readexactly(_LENGTH.size))
                body = await self._reader.readexactly(length)
            except (asyncio.IncompleteReadError, OSError):
                return None
            try:
                return self._decoder.decode(body)
            except msgspec.DecodeError as error:
                _log.warning("a message between the gateway's processes was skipped: %s", error)

    async def close(self) -> None:
        """What was sent is on its way before the end is closed."""
        self._writer.close()
        try:
            await self._writer.wait_closed()
        except OSError:
            return
