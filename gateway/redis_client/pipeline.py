"""A few fixed connections that all calls of a process share. Calls with the same `order` stay in order."""

import asyncio
import logging
import ssl
from typing import Any

from redis.asyncio.connection import SSLConnection, parse_url
from redis.exceptions import RedisError

from gateway.redis_client.connection import MAX_IN_FLIGHT, MIN_IN_FLIGHT, TICKS, Connection, Lost, Watch
from gateway.redis_client.grouping import Call, Group
from gateway.redis_client.resp import Reply, encode

_log = logging.getLogger(__name__)

NUM_CONNECTIONS = 2
SILENT_TICKS = TICKS // 2
"""Redis is silent if one connection has been for this long, and the others for OTHERS_SILENT_TICKS. In
`benchmarks.limits`, with a core taken away, answers are two ticks old at most."""
OTHERS_SILENT_TICKS = 2
SILENT_CALLS = 16
"""How many calls must be unanswered. Fewer can wait for their deadlines, because they cost little afterwards."""
CONNECT_S = 1.0
_FIRST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 1.0


class Pipeline:
    """Call `connect` once, run `keep_forever` beside the server, and call `close` at the end."""

    def __init__(self, url: str, *, deadline_s: float, scripts: tuple[str, ...], watch: Watch) -> None:
        self._options: dict[str, Any] = dict(parse_url(url))
        self._deadline_s = deadline_s
        self._scripts = scripts
        self._watch = watch
        self._max_in_flight = MAX_IN_FLIGHT
        self._connections: list[Connection | None] = [None] * NUM_CONNECTIONS
        self._lost = [asyncio.Event() for _ in range(NUM_CONNECTIONS)]
        self._reason = ""

    async def connect(self) -> None:
        """Try each connection once. `keep_forever` opens those that fail."""
        await asyncio.gather(*(self._try_open(place) for place in range(NUM_CONNECTIONS)))

    async def keep_forever(self) -> None:
        """Reconnect lost connections."""
        async with asyncio.TaskGroup() as group:
            for place in range(NUM_CONNECTIONS):
                group.create_task(self._keep_connection(place))

    def close(self) -> None:
        for connection in self._connections:
            if connection is not None:
                connection.close()

    def send(self, command: bytes, *, order: int = 0) -> Call:
        """Send a command, written together with others that come in quick succession. Raises Lost without a
        connection."""
        return self._connection(order).send(command)

    def send_step(self, group: Group, step: bytes, num_parts: int, *, order: int = 0, at_once: bool = False) -> Call:
        """As `send`, for a step. All steps of a group must have the same `order`; those that leave together become one
        command."""
        return self._connection(order).send(step, group, num_parts, at_once=at_once)

    async def execute(self, *parts: str | bytes | int) -> Reply:
        """Send a command and wait for its reply. Raises one of AWAY."""
        return await self.send(encode(*parts)).future

    def share_with(self, num_gateways: int) -> None:
        """Divide the bound on calls under way among `num_gateways` gateways, us included, so that together they load
        Redis no more than one alone may."""
        self._max_in_flight = max(MIN_IN_FLIGHT, MAX_IN_FLIGHT // max(1, num_gateways))
        for connection in self._connections:
            if connection is not None:
                connection.bound(self._max_in_flight)

    def probe(self) -> None:
        for connection in self._connections:
            if connection is not None:
                connection.probe()

    def give_up(self) -> None:
        """Redis is away: nobody waits for the calls under way any longer. Their answers may still come."""
        for connection in self._connections:
            if connection is not None:
                connection.give_up()

    def _connection(self, order: int) -> Connection:
        connection = self._connections[order % NUM_CONNECTIONS]
        if connection is not None and connection.is_open:
            return connection
        for connection in self._connections:
            if connection is not None and connection.is_open:
                return connection
        raise Lost("no connection to Redis")

    async def _keep_connection(self, place: int) -> None:
        pause_s = 0.0
        while True:
            connection = self._connections[place]
            if connection is not None and connection.is_open:
                pause_s = 0.0
                await self._lost[place].wait()
            elif not await self._try_open(place):
                pause_s = min(max(2 * pause_s, _FIRST_PAUSE_S), _LONGEST_PAUSE_S)
                await asyncio.sleep(pause_s)

    async def _try_open(self, place: int) -> bool:
        try:
            async with asyncio.timeout(CONNECT_S):
                connection = await self._open()
        except (RedisError, OSError, TimeoutError, ssl.SSLError) as error:
            reason = f"{type(error).__name__}: {error}"
            if reason != self._reason:
                _log.warning("cannot connect to Redis: %s", reason)
            self._reason = reason
            self._note_connections()
            return False
        self._reason = ""
        self._connections[place] = connection
        self._lost[place].clear()
        connection.is_introduced = True
        connection.on_lost = lambda: self._note_lost(place)
        connection.on_silent = self._note_silent
        self._note_connections()
        return True

    async def _open(self) -> Connection:
        """A connection that is authenticated and has loaded our scripts."""
        connection = Connection(self._watch, deadline_s=self._deadline_s, scripts=self._scripts)
        connection.bound(self._max_in_flight)
        loop, options = asyncio.get_running_loop(), self._options
        if "path" in options:
            await loop.create_unix_connection(lambda: connection, options["path"])
        else:
            host, port = options.get("host", "localhost"), options.get("port", 6379)
            await loop.create_connection(lambda: connection, host, port, ssl=_tls_of(options))
        try:
            await self._introduce(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    async def _introduce(self, connection: Connection) -> None:
        options = self._options
        commands = [encode("SCRIPT", "LOAD", script) for script in self._scripts]
        if "db" in options:
            commands.insert(0, encode("SELECT", options["db"]))
        if "password" in options:
            user = (options["username"],) if "username" in options else ()
            commands.insert(0, encode("AUTH", *user, options["password"]))
        calls = [connection.send(command) for command in commands]
        outcomes = await asyncio.gather(*(call.future for call in calls), return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome

    def _note_lost(self, place: int) -> None:
        self._lost[place].set()
        self._note_connections()

    def _note_silent(self) -> None:
        """A connection is silent. It may be alone in this, so the others are asked, too."""
        connections = [each for each in self._connections if each is not None and each.is_open]
        silent = [each.silent_ticks for each in connections]
        if max(silent) >= OTHERS_SILENT_TICKS:
            for connection in connections:
                if not connection.num_unanswered:
                    connection.probe()
        if max(silent) < SILENT_TICKS or min(silent) < OTHERS_SILENT_TICKS:
            return
        if sum(each.num_unanswered for each in connections) >= SILENT_CALLS:
            self._watch.note_silence()

    def _note_connections(self) -> None:
        self._watch.note_connections(sum(each is not None and each.is_open for each in self._connections))


def _tls_of(options: dict[str, Any]) -> ssl.SSLContext | None:
    """The TLS context for a `rediss://` URL, with redis-py's parameters: `ssl_cert_reqs=none`, `ssl_check_hostname`,
    `ssl_ca_certs`, `ssl_certfile` and `ssl_keyfile`."""
    if options.get("connection_class") is not SSLConnection:
        return None
    context = ssl.create_default_context(cafile=options.get("ssl_ca_certs"))
    if options.get("ssl_cert_reqs") == "none":
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    elif str(options.get("ssl_check_hostname", True)).lower() in ("false", "0", "no"):
        context.check_hostname = False
    if "ssl_certfile" in options:
        context.load_cert_chain(options["ssl_certfile"], options.get("ssl_keyfile"))
    return context
