"""Messages between a parent and its children, over a socket pair."""

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
    """Child: I accept no more connections and will end once the work under way has ended."""


class Measured(msgspec.Struct, frozen=True, tag=True):
    """Child: my metrics, as an answer to `Measure` or as the last message."""

    own: Snapshot


class Gather(msgspec.Struct, frozen=True, tag=True):
    """Child: give me the metrics of all processes; here are mine."""

    number: int
    own: Snapshot


class Measure(msgspec.Struct, frozen=True, tag=True):
    """Parent: give me your metrics. Also serves as a liveness check of the child's event loop."""


class Gathered(msgspec.Struct, frozen=True, tag=True):
    """Parent: the metrics of all processes, as an answer to `Gather`."""

    number: int
    all: Snapshot


class StandInFor(msgspec.Struct, frozen=True, tag=True):
    """Parent: also accept connections for exactly these slots, which have no process at the moment."""

    slots: frozenset[int]


class HurryUp(msgspec.Struct, frozen=True, tag=True):
    """Parent: end without waiting for the work under way."""


FromChild = Ready | Leaving | Measured | Gather
FromParent = Measure | Gathered | StandInFor | HurryUp


class Link:
    """One end of the socket pair. Messages to a process that is gone are dropped."""

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

        Messages that this version does not know are skipped: a parent may have children of a newer version.
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
        """Flush the sent messages and close this end."""
        self._writer.close()
        try:
            await self._writer.wait_closed()
        except OSError:
            return
