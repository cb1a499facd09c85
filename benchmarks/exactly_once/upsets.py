"""The upsets: a process is killed, frozen or cut off, and comes back after a while."""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator

from benchmarks.exactly_once.site import Site

_AWAY_S = (0.0, 1.5)
_FROZEN_S = (0.3, 4.0)


class Upsets:
    def __init__(self, site: Site, *, rng: random.Random) -> None:
        self._site = site
        self._rng = rng
        self.counts: Counter[str] = Counter()

    async def run(self, num_upsets: int, *, when: AsyncIterator[int]) -> None:
        """One upset at a time. The first ones are one of each kind, so that even a short run has them."""
        kinds = [("kill", name) for name in self._site.services]
        kinds += [("freeze", name) for name in self._site.services] + [("cut", "clickhouse"), ("freeze", "clickhouse")]
        order = self._rng.sample(kinds, len(kinds))
        async for number in when:
            verb, name = order[number] if number < len(order) else self._rng.choice(kinds)
            self.counts[f"{verb} {name.partition('-')[0]}"] += 1
            await self._upset(verb, name)

    async def _upset(self, verb: str, name: str) -> None:
        if name == "clickhouse":
            (self._site.proxy.cut if verb == "cut" else self._site.proxy.freeze)()
            await asyncio.sleep(self._rng.uniform(*_FROZEN_S))
            self._site.proxy.thaw()
            return
        service = self._site.services[name]
        if verb == "kill":
            await service.kill()
            await asyncio.sleep(self._rng.uniform(*_AWAY_S))
            await service.start()
        else:
            service.freeze()
            await asyncio.sleep(self._rng.uniform(*_FROZEN_S))
            service.thaw()
