"""HTTP to members: what is sent, under which deadlines, and which failures another replica may make good."""

import asyncio
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import aiohttp

from gateway.settings import GatewaySettings
from protocol.accounting import ACCOUNTING_HEADER
from router.fleet import Member

MAX_ANSWER_BYTES = 64 * 2**20
_RETRYABLE = frozenset({429, 500, 502, 503, 504})


class MemberFailed(Exception):
    """A member could not be reached, broke off or answered that it cannot now; another may."""

    def __init__(self, message: str, *, retry_after_s: float | None = None, is_reachable: bool = False) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s
        self.is_reachable = is_reachable


class MemberRefused(Exception):
    """A member refused the request as sent; the others would too."""

    def __init__(self, status: int, body: bytes) -> None:
        super().__init__(f"status {status}")
        self.status = status
        self.body = body


class WorkerClient:
    """One connection pool for all members. `async with WorkerClient(settings)`."""

    def __init__(self, settings: GatewaySettings) -> None:
        self._settings = settings
        self._worker_key = settings.worker_key.get_secret_value() if settings.worker_key else None
        members = [member for pool in settings.pools.values() for member in pool.members]
        self._api_keys = {
            member.url: os.environ.get(member.api_key_env, "") for member in members if member.api_key_env
        }

    async def __aenter__(self) -> "WorkerClient":
        timeout = aiohttp.ClientTimeout(
            total=self._settings.request_timeout_s,
            sock_connect=self._settings.connect_timeout_s,
            sock_read=self._settings.idle_timeout_s,
        )
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=30),
            timeout=timeout,
            cookie_jar=aiohttp.DummyCookieJar(),
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    @asynccontextmanager
    async def post(
        self, member: Member, path: str, body: bytes, headers: Mapping[str, str]
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """An answer with status 200. Raises MemberFailed or MemberRefused, also while its content is read."""
        sent = {"content-type": "application/json", **self.authorization(member.url, engine=member.engine)}
        if member.engine == "tiergate":
            sent |= headers
        try:
            response = await self._session.post(member.url + path, data=body, headers=sent)
            try:
                if response.status != 200:
                    await _raise_refusal(member, response)
                yield response
            finally:
                # Not `release`: a stream that is left in the middle must end at the worker at once.
                response.close() if not response.content.at_eof() else response.release()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise MemberFailed(f"{member.worker_id}: {error or type(error).__name__}") from error

    async def get(self, url: str, path: str, *, engine: str, deadline_s: float) -> tuple[int, bytes]:
        """Status and body. Raises MemberFailed."""
        try:
            async with (
                asyncio.timeout(deadline_s),
                self._session.get(url + path, headers=self.authorization(url, engine=engine)) as response,
            ):
                return response.status, await read_all(response)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise MemberFailed(f"{url}: {error or type(error).__name__}") from error

    def authorization(self, url: str, *, engine: str) -> dict[str, str]:
        key = self._api_keys.get(url) or (self._worker_key if engine == "tiergate" else None)
        return {"authorization": f"Bearer {key}"} if key else {}


def tiergate_headers(*, request_id: str, tenant_id: str, weight: float, deadline_s: float) -> dict[str, str]:
    """What our workers honour together with the worker key."""
    return {
        "x-request-id": request_id,
        "x-tiergate-tenant": tenant_id,
        "x-tiergate-weight": f"{weight:g}",
        "x-tiergate-deadline-ms": str(int(deadline_s * 1000)),
        ACCOUNTING_HEADER: "1",
    }


async def read_all(response: aiohttp.ClientResponse) -> bytes:
    """The whole content. Raises MemberFailed for one that is absurdly large."""
    chunks, size = [], 0
    async for chunk in response.content.iter_any():
        chunks.append(chunk)
        size += len(chunk)
        if size > MAX_ANSWER_BYTES:
            raise MemberFailed(f"an answer of more than {MAX_ANSWER_BYTES} bytes")
    return b"".join(chunks)


async def _raise_refusal(member: Member, response: aiohttp.ClientResponse) -> None:
    body = await read_all(response)
    if response.status in _RETRYABLE:
        retry_after = response.headers.get("retry-after", "")
        retry_after_s = float(retry_after) if retry_after.isdigit() else None
        message = f"{member.worker_id} answered {response.status}"
        raise MemberFailed(message, retry_after_s=retry_after_s, is_reachable=True)
    if response.status in (401, 403):
        raise MemberFailed(f"{member.worker_id} does not accept our key (status {response.status})")
    raise MemberRefused(response.status, body)
