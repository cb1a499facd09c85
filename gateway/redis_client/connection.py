"""One connection to Redis: commands that come in quick succession leave in one write, and answers are matched in order.

The number of commands under way is bounded, so that a burst of commands (from us and from other gateways) waits here,
where it does not count against Redis. In Redis, which answers everything it has read at once, the burst would make
Redis look slow. The bound adapts like a congestion window (Chiu and Jain, 1989): it is halved when an answer takes
long, so that a Redis with only part of a core gets fewer commands at a time, and grows by the number of quick answers.
Long and quick are measured from the quickest answer of the last seconds, so that a distant Redis is not taken for a
busy one. Nobody waits here for long: a call that cannot be written within two deadlines is lost.

A call's age is counted in ticks of our own event loop. A slow loop ticks late, so our own slowness never makes Redis
look slow, and the socket is read between any two ticks.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol, cast

from redis.exceptions import RedisError, ResponseError

from gateway.gathering import Gathering
from gateway.redis_client.grouping import Call, Group, commands_of
from gateway.redis_client.resp import BadReply, Replies, Reply, encode

TICKS = 10
"""A call is late at its tenth tick, that is, after 90 to 100 % of its deadline."""
DROP_TICKS = 40 * TICKS
"""A connection whose oldest call has waited this long is closed: its path may be dead while a new one would work."""
MAX_IN_FLIGHT = 256
"""The bound on calls under way for all gateways together, on one connection each. Redis needs 6 ms for them, 25 us a
call."""
MIN_IN_FLIGHT = 16
"""A single gateway's smallest bound while Redis answers quickly, however many gateways there are."""
LEAST_IN_FLIGHT = 4
"""The smallest bound while Redis answers slowly."""
SOON_TICKS = 1
LONG_TICKS = 3
"""How much longer than the quickest answer a quick one and a slow one take."""
MAX_WAY_TICKS = TICKS // 2
"""The most that counts as the way to Redis and back, which no smaller window makes shorter."""
WAY_SEEN_TICKS = 100 * TICKS
"""For how long, and at most twice as long, an answer counts as the quickest."""
MAX_QUEUED_TICKS = 2 * TICKS

_OUR_FAULT = ("ERR", "WRONGTYPE", "NOSCRIPT")


def is_our_fault(error: BaseException | None) -> bool:
    """Whether the command was wrong: asking again does not help, and Redis is healthy."""
    return isinstance(error, ResponseError) and str(error).startswith(_OUR_FAULT)


class Late(RedisError):
    """The deadline has passed. The answer may still come, and is then given to `call.then`."""

    def __init__(self, call: Call) -> None:
        super().__init__("no answer within the deadline")
        self.call = call


class Lost(RedisError):
    """The connection ended before the answer, or there was no connection. The command may or may not have been
    executed."""


class Watch(Protocol):
    """Judges from what the connections observe whether Redis is away. Called often, so it must be quick."""

    def note_answer(self) -> None:
        """An answer came in time."""
        ...

    def note_late(self) -> None:
        """No answer came within a deadline, or an error came instead."""
        ...

    def note_silence(self) -> None:
        """Nothing has come on any connection for long, though something was asked on each. Called again while this
        lasts."""
        ...

    def note_connections(self, num_connections: int) -> None:
        """The number of open connections has changed, or a connection attempt has failed."""
        ...


class Connection(asyncio.Protocol):
    def __init__(self, watch: Watch, *, deadline_s: float, scripts: tuple[str, ...]) -> None:
        self._loop = asyncio.get_running_loop()
        self._watch = watch
        self._tick_s = deadline_s / TICKS
        self._scripts = scripts
        self._max_in_flight = self._window = MAX_IN_FLIGHT
        self._narrowed_at = -1
        """The tick at which the window was last halved. Slow answers to calls written until then are not new evidence
        of slowness."""
        self._quickest = self._quickest_before = MAX_WAY_TICKS
        """The smallest age of an answer in the current and in the previous period of WAY_SEEN_TICKS."""
        self._probe: Call | None = None
        self.is_introduced = False
        """Whether the handshake is done. Until then the connection attempt has its own deadline, and answers do not
        count for `watch`."""
        self.on_lost: Callable[[], None] | None = None
        self.on_silent: Callable[[], None] | None = None
        """Called at each tick while the connection is silent."""
        self._transport: asyncio.WriteTransport | None = None
        self._replies = Replies()
        self._queue: deque[Call] = deque()
        self._urgent: list[Call] = []
        self._waiting: deque[Call] = deque()
        """Calls that were written but not answered yet."""
        self._gathering = Gathering()
        self._is_flushing = False
        self._ticks = 0
        self._heard = 0
        """The tick at which something arrived last."""
        self._ticked_at = 0.0
        self._is_ticking = False

    @property
    def is_open(self) -> bool:
        return self._transport is not None

    @property
    def num_unanswered(self) -> int:
        return len(self._waiting) + len(self._queue)

    @property
    def window(self) -> int:
        """How many calls may be under way now."""
        return self._window

    @property
    def silent_ticks(self) -> int:
        """For how long nothing has arrived though a call waits, beyond what the quickest answer took."""
        if not self._waiting:
            return 0
        asked = max(self._heard, self._waiting[0].tick)
        return max(0, self._ticks - asked - min(self._quickest, self._quickest_before))

    def bound(self, max_in_flight: int) -> None:
        self._max_in_flight = max_in_flight
        self._window = min(self._window, max_in_flight)

    def send(self, command: bytes, group: Group | None = None, num_parts: int = 0, *, at_once: bool = False) -> Call:
        """`call.future` gets the reply, Late, Lost, or ResponseError. Raises Lost when the connection is not open.

        at_once: without waiting for others to leave with, unless some are waiting already.
        """
        if self._transport is None:
            raise Lost("not connected")
        call = Call(command, self._loop.create_future(), self._ticks, group, num_parts)
        self._queue.append(call)
        if not self._is_flushing:
            if at_once:
                self._write()
            else:
                self._flush_soon()
        return call

    def probe(self) -> None:
        """Send a PING, unless the previous one is still unanswered."""
        if self._probe is None and self._transport is not None:
            self._probe = self._send_urgently(encode("PING"))

    def give_up(self) -> None:
        """Redis is away: end all calls as late now, instead of each at its own deadline."""
        for call in self._waiting:
            _make_late(call)
        while self._queue:
            _end(self._queue.popleft(), Lost("not sent, Redis does not answer"))

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
        self._heard = self._ticks
        oldest = self._waiting[0].tick if self._waiting else self._ticks
        num_waiting = len(self._waiting)
        try:
            for reply in self._replies.feed(data):
                is_in_time |= self._match(reply)
        except (BadReply, IndexError):
            # Not our protocol, or more answers than calls: nothing on this connection can be trusted.
            self.close()
        if is_in_time and self.is_introduced:
            self._watch.note_answer()
        self._adapt(oldest, num_answers=num_waiting - len(self._waiting))
        if self._queue and not self._is_flushing:
            self._flush_soon()

    def _adapt(self, oldest: int, *, num_answers: int) -> None:
        """Adapt the window to how long answers took. oldest: the tick at which the oldest answered call was written."""
        age = self._ticks - oldest
        self._quickest = min(self._quickest, age)
        longer = age - min(self._quickest, self._quickest_before)
        if longer <= SOON_TICKS:
            self._window = min(self._window + num_answers, self._max_in_flight)
        elif longer >= LONG_TICKS and oldest > self._narrowed_at:
            self._narrowed_at = self._ticks
            self._window = max(self._window // 2, LEAST_IN_FLIGHT)

    def _match(self, reply: Reply) -> bool:
        """Give the reply to its call or calls. Returns whether it was no error and came in time."""
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
            # LOADING, OOM, READONLY and the like: Redis is there, but of no use.
            if self.is_introduced and not is_our_fault(reply):
                self._watch.note_late()
        is_late = call.is_late
        _end(call, reply)
        return not is_late and not isinstance(reply, ResponseError)

    def _load_and_repeat(self, call: Call) -> None:
        """Load our scripts, which the server has forgotten, and send the call again."""
        for script in self._scripts:
            self._send_urgently(encode("SCRIPT", "LOAD", script))
        call.is_repeated = True
        self._urgent.append(call)

    def _send_urgently(self, command: bytes) -> Call:
        """Send a command ahead of waiting calls and regardless of the window. Nobody waits for its answer."""
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
        if not self._urgent and self._gathering.waits(len(self._queue), time.monotonic()):
            self._flush_soon()
        else:
            self._write()

    def _write(self) -> None:
        """Write what the window allows."""
        assert self._transport is not None
        self._gathering.leave()
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
        # uvloop counts from the start of an iteration, so after a long iteration a timer fires at once.
        if now - self._ticked_at < 0.9 * self._tick_s:
            return
        self._ticked_at = now
        self._ticks += 1
        if self._ticks % WAY_SEEN_TICKS == 0:
            self._quickest_before, self._quickest = self._quickest, MAX_WAY_TICKS
        if self._ticks - self._waiting[0].tick >= DROP_TICKS:
            self.close()
            return
        if self.is_introduced:
            self._judge()
            if self.on_silent is not None and self.silent_ticks > 0:
                self.on_silent()

    def _judge(self) -> None:
        """End the calls that are late. However many there are, they count as one late answer."""
        while self._queue and self._ticks - self._queue[0].tick >= MAX_QUEUED_TICKS:
            _end(self._queue.popleft(), Lost("not sent, Redis is slow"))
        if not self._is_old(self._waiting[0]):
            return
        is_any_new = False
        for call in self._waiting:
            if not self._is_old(call):
                break
            is_any_new |= _make_late(call)
        # Calls that wait behind the late ones have waited for Redis, too.
        while self._queue and self._is_old(self._queue[0]):
            _end(self._queue.popleft(), Lost("not sent, Redis does not answer"))
        if is_any_new:
            self._watch.note_late()

    def _is_old(self, call: Call) -> bool:
        return self._ticks - call.tick >= TICKS


def _make_late(call: Call) -> bool:
    """Whether it was not late before."""
    if call.is_late:
        return False
    call.is_late = True
    if not call.future.done():
        call.future.set_exception(Late(call))
    return True


def ignore_outcome(future: "asyncio.Future[Reply]") -> None:
    """For a call whose answer nobody waits for. The connection itself judges failures."""
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
