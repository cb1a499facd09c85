"""One connection to Redis: commands of one turn of the event loop leave in one write, answers are matched in order.

A bounded number is under way, so that a burst of ours (and of the other gateways) waits here, where nobody is to blame
for it, and not in Redis, which answers all that it has read at once and would look slow. The bound follows how soon
Redis answers, as a congestion window does (Chiu and Jain, 1989): it is halved where an answer took long, so that a
Redis which has only a part of a core is asked less at a time, and grows by what is answered soon.
A call's age is counted in ticks of our own event loop: a loop that comes late gives a tick late, so that our own
slowness never makes Redis look slow. What is in the socket is read between any two ticks.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol, cast

from redis.exceptions import RedisError, ResponseError

from gateway.redis_client.grouping import Call, Group, commands_of
from gateway.redis_client.resp import BadReply, Replies, Reply, encode

TICKS = 10
"""A call is late at the tenth tick that it sees: after 90 to 100 % of its deadline."""
DROP_TICKS = 40 * TICKS
"""A connection whose oldest call has waited this long is given up: its path may be dead while a new one would work."""
MAX_IN_FLIGHT = 256
"""All gateways together on one line each. Times 25 us a call: Redis answers within 6 ms of its own time."""
MIN_IN_FLIGHT = 16
"""Of one, however many gateways there are, while Redis answers soon."""
LEAST_IN_FLIGHT = 4
"""While it does not."""
SOON_TICKS = 1
LONG_TICKS = 3

_OUR_FAULT = ("ERR", "WRONGTYPE", "NOSCRIPT")


def is_our_fault(error: BaseException | None) -> bool:
    """The command was wrong: asking again does not help, and Redis is well."""
    return isinstance(error, ResponseError) and str(error).startswith(_OUR_FAULT)


class Late(RedisError):
    """The deadline passed; the answer may still come, and `call.then` is told of it."""

    def __init__(self, call: Call) -> None:
        super().__init__("no answer within the deadline")
        self.call = call


class Lost(RedisError):
    """The connection ended before the answer, or there was none; nobody knows whether the command was executed."""


class Watch(Protocol):
    """Who judges by what lines see whether Redis is away. Called often, and must be quick."""

    def note_answer(self) -> None:
        """One came in time."""
        ...

    def note_late(self) -> None:
        """None came within a deadline, or an error instead of one."""
        ...

    def note_lines(self, num_lines: int) -> None:
        """So many connections stand now."""
        ...


class Line(asyncio.Protocol):
    def __init__(self, watch: Watch, *, deadline_s: float, scripts: tuple[str, ...]) -> None:
        self._loop = asyncio.get_running_loop()
        self._watch = watch
        self._tick_s = deadline_s / TICKS
        self._scripts = scripts
        self._max_in_flight = self._window = MAX_IN_FLIGHT
        self._narrowed_at = -1
        """The tick; what was written until then says no more than what narrowed it."""
        self._probe: Call | None = None
        self.is_introduced = False
        """Only then do its answers say how Redis is; until then `connect` has a deadline of its own."""
        self.on_lost: Callable[[], None] | None = None
        self._transport: asyncio.WriteTransport | None = None
        self._replies = Replies()
        self._queue: deque[Call] = deque()
        self._urgent: list[Call] = []
        self._waiting: deque[Call] = deque()
        """Written, not answered."""
        self._is_flushing = False
        self._ticks = 0
        self._ticked_at = 0.0
        self._is_ticking = False

    @property
    def is_open(self) -> bool:
        return self._transport is not None

    @property
    def window(self) -> int:
        """So many calls may be under way now."""
        return self._window

    def bound(self, max_in_flight: int) -> None:
        self._max_in_flight = max_in_flight
        self._window = min(self._window, max_in_flight)

    def send(self, command: bytes, group: Group | None = None, num_parts: int = 0) -> Call:
        """`call.future` gets the reply, Late, Lost, or ResponseError. Raises Lost when the line is not open."""
        if self._transport is None:
            raise Lost("not connected")
        call = Call(command, self._loop.create_future(), self._ticks, group, num_parts)
        self._queue.append(call)
        if not self._is_flushing:
            self._flush_soon()
        return call

    def probe(self) -> None:
        """Ask whether anybody is there, unless the last such question is still open."""
        if self._probe is None and self._transport is not None:
            self._probe = self._send_urgently(encode("PING"))

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        lost = Lost(f"the connection ended: {error or 'closed'}")
        calls = (*self._waiting, *self._urgent, *self._queue)
        self._waiting, self._urgent, self._queue, self._probe = deque(), [], deque(), None
        if self.on_lost is not None:
            self.on_lost()
        for call in calls:
            _end(call, lost)

    def data_received(self, data: bytes) -> None:
        is_in_time = False
        oldest = self._waiting[0].tick if self._waiting else self._ticks
        num_waiting = len(self._waiting)
        try:
            for reply in self._replies.feed(data):
                is_in_time |= self._match(reply)
        except (BadReply, IndexError):
            # Not our protocol, or more answers than questions: nothing on this connection can be believed.
            self.close()
        if is_in_time and self.is_introduced:
            self._watch.note_answer()
        self._adapt(oldest, num_answers=num_waiting - len(self._waiting))
        if self._queue and not self._is_flushing:
            self._flush_soon()

    def _adapt(self, oldest: int, *, num_answers: int) -> None:
        """oldest: the tick at which the first of these calls was written."""
        age = self._ticks - oldest
        if age <= SOON_TICKS:
            self._window = min(self._window + num_answers, self._max_in_flight)
        elif age >= LONG_TICKS and oldest > self._narrowed_at:
            self._narrowed_at = self._ticks
            self._window = max(self._window // 2, LEAST_IN_FLIGHT)

    def _match(self, reply: Reply) -> bool:
        """Whether the reply was a good one and in time."""
        first = self._waiting.popleft()
        if first.group is None:
            return self._match_one(first, reply)
        calls = [first, *(self._waiting.popleft() for _ in range(first.num_together - 1))]
        replies = reply.split(b";") if isinstance(reply, bytes) else [reply] * len(calls)
        if len(replies) != len(calls):
            self._waiting.extendleft(reversed(calls))
            raise BadReply(f"{len(replies)} answers to {len(calls)} steps")
        is_good = False
        for call, each in zip(calls, replies, strict=True):
            is_good |= self._match_one(call, each)
        return is_good

    def _match_one(self, call: Call, reply: Reply) -> bool:
        if call is self._probe:
            self._probe = None
        if isinstance(reply, ResponseError):
            if str(reply).startswith("NOSCRIPT") and self._transport is not None and not call.is_repeated:
                self._load_and_repeat(call)
                return False
            # LOADING, OOM, READONLY and the like: there, but of no use.
            if self.is_introduced and not is_our_fault(reply):
                self._watch.note_late()
        is_late = call.is_late
        _end(call, reply)
        return not is_late and not isinstance(reply, ResponseError)

    def _load_and_repeat(self, call: Call) -> None:
        """The server has forgotten our scripts."""
        for script in self._scripts:
            self._send_urgently(encode("SCRIPT", "LOAD", script))
        call.is_repeated = True
        self._urgent.append(call)

    def _send_urgently(self, command: bytes) -> Call:
        """Before what waits, and however much is under way; nobody waits for the answer."""
        call = Call(command, self._loop.create_future(), self._ticks)
        call.future.add_done_callback(ignore_outcome)
        self._urgent.append(call)
        if not self._is_flushing:
            self._flush_soon()
        return call

    def _flush_soon(self) -> None:
        self._is_flushing = True
        self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._is_flushing = False
        if self._transport is None:
            return
        calls, self._urgent = self._urgent, []
        for _ in range(min(len(self._queue), self._window - len(self._waiting) - len(calls))):
            calls.append(self._queue.popleft())
        if not calls:
            return
        for call in calls:
            call.tick = self._ticks
        ordered, commands = commands_of(calls)
        self._waiting.extend(ordered)
        self._transport.write(b"".join(commands))
        if not self._is_ticking:
            self._is_ticking = True
            self._ticked_at = time.monotonic()
            self._loop.call_later(self._tick_s, self._tick)

    def _tick(self) -> None:
        if not self._waiting:
            self._is_ticking = False
            return
        self._loop.call_later(self._tick_s, self._tick)
        now = time.monotonic()
        # uvloop counts from the start of its turn: after a long one, a timer is due at once.
        if now - self._ticked_at < 0.9 * self._tick_s:
            return
        self._ticked_at = now
        self._ticks += 1
        if self._ticks - self._waiting[0].tick >= DROP_TICKS:
            self.close()
            return
        if self.is_introduced:
            self._judge()

    def _judge(self) -> None:
        """End what is late. However many calls that are, they tell of one lateness."""
        if not self._is_old(self._waiting[0]):
            return
        is_any_new = False
        for call in self._waiting:
            if not self._is_old(call):
                break
            if not call.is_late:
                is_any_new = call.is_late = True
                if not call.future.done():
                    call.future.set_exception(Late(call))
        # Whoever waits behind them has waited for Redis, too.
        while self._queue and self._is_old(self._queue[0]):
            _end(self._queue.popleft(), Lost("not sent, Redis does not answer"))
        if is_any_new:
            self._watch.note_late()

    def _is_old(self, call: Call) -> bool:
        return self._ticks - call.tick >= TICKS


def ignore_outcome(future: "asyncio.Future[Reply]") -> None:
    """Nobody waits for this answer; its failure is judged by the line itself."""
    if not future.cancelled():
        future.exception()


def _end(call: Call, outcome: Reply | RedisError) -> None:
    if call.is_late:
        if call.then is not None:
            call.then(outcome)
    elif call.future.done():
        return
    elif isinstance(outcome, RedisError):
        call.future.set_exception(outcome)
    else:
        call.future.set_result(outcome)
