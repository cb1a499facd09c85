"""Conversations that recently went to the large pool stay there, whatever the next message looks like on its own.

Their prefix is in the caches of that pool's replicas, and a message such as "go on" is as hard as what it continues. A
conversation is identified by the messages before its last answer, which the next request repeats. Entries are kept in
this process and, for other gateways, in Redis, which is read only if its answer could change the decision.
"""

import time
from collections import OrderedDict
from collections.abc import Callable, Sequence

from gateway.redis_client import AWAY
from gateway.redis_client.pipeline import Pipeline
from gateway.redis_client.resp import encode
from protocol.messages import AssistantMessage, Message, content_text
from router.ring import hash_key

WARM_S = 600
"""How long a conversation stays warm after its last answer."""
MAX_KEPT = 10_000
_PREFIX = "tiergate:warm:"


class Conversations:
    def __init__(self, redis: Pipeline, *, is_away: Callable[[], bool]) -> None:
        self._redis = redis
        self._is_away = is_away
        self._until_s: OrderedDict[int, float] = OrderedDict()

    def note(self, tenant: str, messages: Sequence[Message]) -> None:
        """Note that the large pool answers these messages."""
        key = _key(tenant, messages)
        self._keep(key, time.monotonic() + WARM_S)
        if not self._is_away():
            try:
                call = self._redis.send(encode("SET", f"{_PREFIX}{key:x}", "1", "EX", WARM_S))
            except AWAY:
                return
            # Nobody waits for the result, and a failure loses nothing, so only retrieve the exception.
            call.future.add_done_callback(lambda over: over.cancelled() or over.exception())

    async def is_warm(self, tenant: str, messages: Sequence[Message]) -> bool:
        """Whether the last answer in `messages` came from the large pool."""
        answers = [place for place, message in enumerate(messages) if isinstance(message, AssistantMessage)]
        if not answers:
            return False
        key = _key(tenant, messages[: answers[-1]])
        if self._until_s.get(key, 0.0) > time.monotonic():
            return True
        if self._is_away():
            return False
        try:
            left_s = await self._redis.execute("TTL", f"{_PREFIX}{key:x}")
        except AWAY:
            return False
        if not isinstance(left_s, int) or left_s <= 0:
            return False
        self._keep(key, time.monotonic() + left_s)
        return True

    def _keep(self, key: int, until_s: float) -> None:
        self._until_s[key] = until_s
        self._until_s.move_to_end(key)
        if len(self._until_s) > MAX_KEPT:
            self._until_s.popitem(last=False)


def _key(tenant: str, messages: Sequence[Message]) -> int:
    parts = [part for message in messages for part in (type(message).__name__, content_text(message.content))]
    return hash_key(tenant, *parts)
