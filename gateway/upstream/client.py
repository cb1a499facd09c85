"""HTTP to members: sends requests, and tells which failures another replica may recover from."""

import asyncio
import os
from collections.abc import Mapping

from gateway.settings import GatewaySettings
from gateway.upstream.http.connection import Connection
from gateway.upstream.http.errors import OutOfResources, TransportFailed
from gateway.upstream.http.pool import ConnectionPool, Origin, parse_origin
from protocol.errors import ADAPTER_UNAVAILABLE
from router.fleet import Member

_ADAPTER_UNAVAILABLE = f'"{ADAPTER_UNAVAILABLE}"'.encode()
MAX_ANSWER_BYTES = 64 * 2**20
_RETRYABLE = frozenset({408, 425, 429})
"""Besides all from 500 on."""
_WRONG_KEY = 401
_MAX_RETRY_AFTER_S = 3600.0


class MemberFailed(Exception):
    """A member could not be reached, broke off or answered that it cannot serve now. Another member may.

    is_reachable: the member answered, or the fault was ours, so other requests need not avoid it.
    is_missing: it does not have the model or adapter that we expected. is_fault: an internal error of the member. A
    single one may be caused by the request alone; many in a row count against the member.
    """

    def __init__(
        self,
        message: str,
        *,
        retry_after_s: float | None = None,
        is_reachable: bool = False,
        is_missing: bool = False,
        is_fault: bool = False,
    ) -> None:
        super().__init__(message)
        self.is_fault = is_fault
        self.is_missing = is_missing
        self.retry_after_s = retry_after_s
        self.is_reachable = is_reachable


class MemberRefused(Exception):
    """A member refused the request itself; the other members would refuse it, too."""

    def __init__(self, status: int, body: bytes) -> None:
        super().__init__(f"status {status}")
        self.status = status
        self.body = body


class Answer:
    """A member's answer with status 200. The caller must close it. Reading raises MemberFailed."""

    __slots__ = ("_connection", "_origin", "_pool", "_worker_id")

    def __init__(self, pool: ConnectionPool, origin: Origin, connection: Connection, worker_id: str) -> None:
        self._pool = pool
        self._origin = origin
        self._connection = connection
        self._worker_id = worker_id

    def close(self) -> None:
        """If the answer is not complete, this makes the member stop computing it."""
        self._pool.end(self._origin, self._connection)

    def end(self) -> None:
        """Everything that matters was read. The connection is reused once the rest of the answer, such as its last
        chunk, has arrived."""
        self._connection.may_linger = True

    @property
    def is_event_stream(self) -> bool:
        return self._connection.headers.get(b"content-type", b"").startswith(b"text/event-stream")

    def header(self, name: bytes) -> bytes | None:
        return self._connection.headers.get(name)

    async def next_chunk(self) -> bytes:
        """All of the body that has arrived since the last call; b"" at its end."""
        try:
            return await self._connection.next_chunk()
        except TransportFailed as failure:
            raise _as_member_failure(self._worker_id, failure) from failure

    async def read(self) -> bytes:
        """The rest of the body."""
        try:
            return await _read_all(self._connection)
        except TransportFailed as failure:
            raise _as_member_failure(self._worker_id, failure) from failure


class WorkerClient:
    """A pool of connections to all members. Use `async with WorkerClient(settings)`, and run `sweep_forever` beside
    it."""

    def __init__(self, settings: GatewaySettings) -> None:
        self._worker_keys: tuple[str | None, ...] = settings.worker_keys or (None,)
        self._accepted: dict[str, tuple[str | None, ...]] = {}
        """For members that accept a worker key other than the first: the keys in the order in which they are tried."""
        members = [member for pool in settings.all_pools.values() for member in pool.members]
        self._api_keys = {
            member.url: os.environ.get(member.api_key_env, "") for member in members if member.api_key_env
        }
        self._heads: dict[tuple[str, str, str, str | None], str] = {}
        self._pool = ConnectionPool(
            connect_s=settings.connect_timeout_s,
            silence_s=settings.idle_timeout_s,
            total_s=settings.request_timeout_s,
        )
        self._worker_silence_s = settings.worker_silence_s

    async def __aenter__(self) -> "WorkerClient":
        return self

    async def __aexit__(self, *_: object) -> None:
        self._pool.close()

    async def sweep_forever(self) -> None:
        await self._pool.sweep_forever()

    async def post(
        self, member: Member, path: str, body: bytes, headers: Mapping[str, str], *, shows_life: bool = False
    ) -> Answer:
        """Returns an answer with status 200. `headers` are sent in addition to the usual ones. Raises MemberFailed or
        MemberRefused.

        shows_life: the member sends something every few seconds even while it waits; a shorter silence limit applies.
        """
        origin = parse_origin(member.url)
        named = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
        described = f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n{named}\r\n"
        silence_s = self._worker_silence_s if shows_life else None
        keys = self._keys_for(member.url, engine=member.engine)
        try:
            for key in keys:
                raw = f"{self._head('POST', origin, path, member.url, key)}{described}".encode() + body
                connection = await self._pool.begin(origin, raw, silence_s=silence_s)
                if connection.status != _WRONG_KEY or key == keys[-1]:
                    break
                self._pool.end(origin, connection)
            if connection.status != _WRONG_KEY and key != keys[0]:
                self._remember(member.url, key)
            if connection.status != 200:
                await self._raise_refusal(member, origin, connection)
        except TransportFailed as failure:
            raise _as_member_failure(member.worker_id, failure) from failure
        return Answer(self._pool, origin, connection, member.worker_id)

    async def get(self, url: str, path: str, *, engine: str, deadline_s: float) -> tuple[int, bytes]:
        """Status and body. Raises MemberFailed."""
        origin = parse_origin(url)
        keys = self._keys_for(url, engine=engine)
        try:
            async with asyncio.timeout(deadline_s):
                for key in keys:
                    raw = self._head("GET", origin, path, url, key).encode() + b"\r\n"
                    async with self._pool.request(origin, raw) as connection:
                        status, body = connection.status, await _read_all(connection)
                    if status != _WRONG_KEY:
                        break
            if status != _WRONG_KEY and key != keys[0]:
                self._remember(url, key)
            return status, body
        except TransportFailed as failure:
            raise _as_member_failure(url, failure) from failure
        except TimeoutError as error:
            raise MemberFailed(f"{url}: no answer within {deadline_s:g} s") from error

    async def _raise_refusal(self, member: Member, origin: Origin, connection: Connection) -> None:
        status = connection.status
        try:
            body = await _read_all(connection)
        finally:
            self._pool.end(origin, connection)
        if status == 503 and _ADAPTER_UNAVAILABLE in body:
            raise adapter_unavailable(member)
        if status in _RETRYABLE or status >= 500:
            retry_after = connection.headers.get(b"retry-after", b"")
            retry_after_s = min(float(retry_after), _MAX_RETRY_AFTER_S) if retry_after.isdigit() else None
            message = f"{member.worker_id} answered {status}"
            is_fault = status >= 500 and status != 503
            raise MemberFailed(message, retry_after_s=retry_after_s, is_reachable=True, is_fault=is_fault)
        if status == 404:
            # The client's names were checked before, so here our view of the member is wrong.
            raise MemberFailed(f"{member.worker_id} does not have what we ask for", is_reachable=True, is_missing=True)
        if status in (401, 403) or status < 400:
            raise MemberFailed(f"{member.worker_id} does not serve us as configured (status {status})")
        raise MemberRefused(status, body)

    def _keys_for(self, url: str, *, engine: str) -> tuple[str | None, ...]:
        """The keys in the order in which they are tried. A wrong key costs only one round trip."""
        own = self._api_keys.get(url)
        if own or engine != "tiergate":
            return (own or None,)
        return self._accepted.get(url, self._worker_keys)

    def _remember(self, url: str, key: str | None) -> None:
        self._accepted[url] = (key, *(other for other in self._worker_keys if other != key))

    def _head(self, method: str, origin: Origin, path: str, url: str, key: str | None) -> str:
        """The request head, cached by method, path, URL and key. There are only as many as members times paths."""
        head = self._heads.get((method, path, url, key))
        if head is None:
            head = self._heads[(method, path, url, key)] = self._make_head(method, origin, path, key)
        return head

    def _make_head(self, method: str, origin: Origin, path: str, key: str | None) -> str:
        authorization = f"Authorization: Bearer {key}\r\n" if key else ""
        return (
            f"{method} {origin.path}{path} HTTP/1.1\r\nHost: {origin.host_header}\r\n"
            f"Accept: */*\r\nAccept-Encoding: identity\r\nUser-Agent: tiergate\r\n{authorization}"
        )


def adapter_unavailable(member: Member) -> MemberFailed:
    """The failure of a member that is healthy but cannot load the adapter now."""
    return MemberFailed(f"{member.worker_id} cannot load the adapter now", is_reachable=True, is_missing=True)


async def _read_all(connection: Connection) -> bytes:
    chunks, size = [], 0
    while chunk := await connection.next_chunk():
        chunks.append(chunk)
        size += len(chunk)
        if size > MAX_ANSWER_BYTES:
            raise TransportFailed(f"an answer of more than {MAX_ANSWER_BYTES} bytes")
    return chunks[0] if len(chunks) == 1 else b"".join(chunks)


def _as_member_failure(name: str, failure: TransportFailed) -> MemberFailed:
    return MemberFailed(f"{name}: {failure}", is_reachable=isinstance(failure, OutOfResources))
