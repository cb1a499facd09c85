"""Notices of changes through one gateway's admin plane, sent to all other gateways at once through Redis.

A gateway that a notice does not reach, because Redis is away, finds the change when it next reads the database: keys
and tenants within about `keyring.FRESH_S`, the rest within `catalog.REFRESH_S`.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from redis.asyncio import Redis

from gateway.domain.catalog import CatalogCache
from gateway.domain.keys.keyring import Keyring
from gateway.redis_client import AWAY

_log = logging.getLogger(__name__)

CHANNEL = "tiergate:changes"
_RETRY_S = 0.5
_IDLE_S = 0.5
_GAP_S = 0.2
"""The pause between two reloads of everything, however many notices arrive."""


class Notice(msgspec.Struct, frozen=True):
    """ended: prefixes of keys that must be read again before they are accepted; empty: anything may have changed."""

    sender: str
    ended: list[str] = []


_DECODER = msgspec.json.Decoder(Notice)


class Notices:
    def __init__(
        self,
        redis: "Redis",
        keyring: Keyring,
        catalog: CatalogCache,
        *,
        sender: str,
        redraw: Callable[[], None],
    ) -> None:
        """redraw: called after each reload of the catalog."""
        self._redis = redis
        self._keyring = keyring
        self._catalog = catalog
        self._sender = sender
        self._redraw = redraw
        self._is_stale = asyncio.Event()
        self.is_deaf = False

    async def tell(self, *, ended: Sequence[str] = ()) -> None:
        """Publish a notice. While Redis is away, the notice is lost."""
        try:
            await self._redis.publish(CHANNEL, msgspec.json.encode(Notice(self._sender, list(ended))))
        except AWAY as error:
            _log.warning("other gateways learn of a change only by themselves: %r", error)

    async def follow_forever(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._listen_forever())
            group.create_task(self._reload_forever())

    async def _listen_forever(self) -> None:
        while True:
            try:
                async with self._redis.pubsub(ignore_subscribe_messages=True) as subscription:
                    await subscription.subscribe(CHANNEL)
                    if self.is_deaf:
                        # Notices that were published meanwhile are lost.
                        self._is_stale.set()
                    self.is_deaf = False
                    while True:
                        self._take(await subscription.get_message(timeout=_IDLE_S))
            except AWAY as error:
                self.is_deaf = True
                _log.debug("changes of other gateways are not heard: %r", error)
                await asyncio.sleep(_RETRY_S)

    def _take(self, message: dict[str, Any] | None) -> None:
        if message is None:
            return
        try:
            notice = _DECODER.decode(message["data"])
        except msgspec.MsgspecError:
            _log.warning("not a notice of ours on %s: %.100r", CHANNEL, message["data"])
            return
        if notice.sender == self._sender:
            return
        for prefix in notice.ended:
            self._keyring.end(prefix)
        if not notice.ended:
            self._is_stale.set()

    async def _reload_forever(self) -> None:
        while True:
            await self._is_stale.wait()
            self._is_stale.clear()
            self._keyring.forget()
            await self._catalog.refresh()
            self._redraw()
            await asyncio.sleep(_GAP_S)
