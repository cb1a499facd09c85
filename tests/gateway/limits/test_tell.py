"""Requests that Redis is told of afterwards count at their own time, once, and not for ever."""

import asyncio
import struct
from uuid import uuid4

from redis import Redis

from gateway.limits.commands import STEP_PARTS, TELL_PARTS, Terms, admit, held_key, scope_key
from gateway.limits.limiter import Limiter
from tests.support.limiters import admission, open_limiter
from tests.support.tiers import make_tier
from tests.support.valkey import ValkeyProcess

TIER = make_tier(requests_per_minute=100, tokens_per_day=1000)
MINUTE_US = 60_000_000


class Told:
    """A tenant's state in Redis."""

    def __init__(self, valkey: ValkeyProcess, limiter: Limiter, *, window_us: int = MINUTE_US) -> None:
        self._limiter = limiter
        self._redis: Redis = Redis.from_url(valkey.url)
        self.tenant_id = uuid4()
        self.terms = Terms(admission(self.tenant_id, TIER), incarnation="i", window_us=window_us)
        self.scope, self.held = scope_key(self.tenant_id, "tenant"), held_key(self.tenant_id, "i")

    async def tell(self, *requests: tuple[str, int, float, float | None]) -> list[bytes]:
        """Of each its id, its tokens, its age, and how long ago it ended. All in one call."""
        calls = [
            self._limiter.redis.send_step(
                self.terms.tell_group,
                self.terms.tell(name, tokens, 0, age_s=age_s, ended_s=ended_s, counting="always"),
                TELL_PARTS,
            )
            for name, tokens, age_s, ended_s in requests
        ]
        return [await call.future for call in calls]  # type: ignore[misc]

    def state(self) -> tuple[int, int, int]:
        """Requests and tokens in the window, and requests under way."""
        requests, tokens, live, *_ = struct.unpack("6d", self._redis.hget(self.scope, "state"))  # type: ignore[arg-type]
        return int(requests), int(tokens), int(live)

    def day_tokens(self) -> int:
        day = f"day:{self.terms.admission.now:%Y%m%d}"
        return int(struct.unpack("2d", self._redis.hget(self.scope, day))[0])  # type: ignore[arg-type]

    def buckets(self) -> set[int]:
        return {int(field) for field in self._redis.hkeys(self.scope) if field.isdigit()}

    def now_s(self) -> int:
        return int(self._redis.time()[0])  # type: ignore[index]

    def lifetimes(self) -> list[int]:
        return [self._redis.ttl(key) for key in (self.scope, self.held)]  # type: ignore[misc]


async def test_each_counts_at_its_own_time_and_outside_the_window_only_on_the_day(valkey: ValkeyProcess) -> None:
    async with open_limiter(valkey.url) as limiter:
        told = Told(valkey, limiter)
        before_s = told.now_s()
        assert await told.tell(("a", 5, 40, 1), ("b", 6, 20, None), ("c", 7, 61, 0)) == [b"1", b"1", b"1"]
        assert told.state() == (2, 11, 1)
        assert told.day_tokens() == 18
        late_s = told.now_s() - before_s
        ages = sorted(before_s - bucket for bucket in told.buckets())
        assert len(ages) == 2
        assert 20 - late_s <= ages[0] <= 20
        assert 40 - late_s <= ages[1] <= 40
        assert min(told.lifetimes()) > 3600


async def test_one_told_twice_in_a_call_counts_once(valkey: ValkeyProcess) -> None:
    async with open_limiter(valkey.url) as limiter:
        told = Told(valkey, limiter)
        answers = await told.tell(("a", 90, 1, None), ("a", 90, 1, None), ("a", 5, 1, 0), ("a", 5, 1, 0))
        assert answers == [b"1", b"0", b"1", b"0"]
        assert told.state() == (1, 5, 0)
        assert told.day_tokens() == 5


async def test_what_has_left_the_window_does_not_count_beside_what_is_told(valkey: ValkeyProcess) -> None:
    async with open_limiter(valkey.url) as limiter:
        told = Told(valkey, limiter, window_us=200_000)
        await told.tell(("a", 5, 0, 0))
        await asyncio.sleep(0.3)
        await told.tell(("b", 6, 0, 0))
        assert told.state() == (1, 6, 0)
        assert told.day_tokens() == 11


async def test_a_request_that_asks_afterwards_finds_what_was_told(valkey: ValkeyProcess) -> None:
    async with open_limiter(valkey.url) as limiter:
        told = Told(valkey, limiter)
        await told.tell(*((f"r{i}", 1, 1, None) for i in range(100)))
        reply = await limiter.redis.send_step(told.terms.group, admit("one more", 1, 0), STEP_PARTS).future
        assert isinstance(reply, bytes)
        assert reply.split()[0] == b"requests_per_minute"
        assert told.state() == (100, 100, 100)
