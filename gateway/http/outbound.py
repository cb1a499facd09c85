"""The one HTTP client for addresses that somebody else supplies: tenants' webhooks, tools and guardrails, and identity
providers.

The address is checked when its socket is created, so that a name which resolves differently a moment later (DNS
rebinding) is checked as what it resolves to then. There are no redirects, proxies or cookies, and no connection is
reused. Time and size are bounded.
"""

import socket
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal
from urllib.parse import urlsplit

import aiohttp
from aiohttp.abc import AbstractResolver

from gateway.http.addresses import Networks, is_allowed, parse_address
from gateway.http.errors import InvalidRequest
from gateway.http.resolver import ApartResolver

CONNECT_S = 5.0
TOTAL_S = 10.0
MAX_ANSWER_BYTES = 64 * 1024
MAX_CONNECTIONS = 100
"""Concurrent connections. Further requests wait, and the wait counts towards their own time limit."""
MAX_URL_CHARS = 2000
_REFUSED_WORDS = "its address is not a public one"


Reason = Literal["refused", "redirect", "timeout", "too_large", "failed"]
"""refused: the address is not allowed. failed: no connection, or it broke before the answer's end."""


class OutboundFailed(Exception):
    """There was no answer, or one that may not be read. The message says why, and tenants may see it."""

    def __init__(self, message: str, *, reason: Reason) -> None:
        super().__init__(message)
        self.reason = reason


class _AddressRefused(OSError):
    pass


@dataclass(frozen=True)
class OutboundAnswer:
    status: int
    body: bytes


class Outbound:
    """The owner must call `close`. resolver: for tests of names that change their address."""

    def __init__(
        self,
        *,
        allowed_private: Networks = (),
        total_s: float = TOTAL_S,
        max_answer_bytes: int = MAX_ANSWER_BYTES,
        max_connections: int = MAX_CONNECTIONS,
        resolver: AbstractResolver | None = None,
    ) -> None:
        self._allowed_private = allowed_private
        self._max_answer_bytes = max_answer_bytes
        self._max_connections = max_connections
        self._resolver = resolver or ApartResolver()
        self._timeout = aiohttp.ClientTimeout(total=total_s, sock_connect=CONNECT_S)
        self._session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
        await self._resolver.close()

    def check_url(self, url: str) -> None:
        """Check everything that can be checked before connecting. Raises InvalidRequest."""
        try:
            parts = urlsplit(url)
            host, _ = parts.hostname, parts.port
        except ValueError:
            host = None
            parts = urlsplit("")
        if parts.scheme not in ("http", "https") or not host or len(url) > MAX_URL_CHARS or not url.isprintable():
            raise InvalidRequest("url: send one such as https://example.com/hook", param="url")
        if parts.username is not None or parts.password is not None or parts.fragment:
            raise InvalidRequest("url: must hold neither a user, a password nor a fragment", param="url")
        address = parse_address(host)
        if address is not None and not is_allowed(address, self._allowed_private):
            raise InvalidRequest("url: this address is not a public one", param="url")

    async def post(
        self,
        url: str,
        body: bytes,
        headers: Mapping[str, str],
        *,
        total_s: float | None = None,
        max_answer_bytes: int | None = None,
    ) -> OutboundAnswer:
        """Raises OutboundFailed. Any status except a redirect counts as an answer. total_s, max_answer_bytes: override
        the default bounds."""
        return await self._ask("POST", url, body, headers, total_s=total_s, max_answer_bytes=max_answer_bytes)

    async def get(self, url: str, headers: Mapping[str, str] = MappingProxyType({})) -> OutboundAnswer:
        """As `post`."""
        return await self._ask("GET", url, None, headers)

    async def _ask(
        self,
        method: str,
        url: str,
        body: bytes | None,
        headers: Mapping[str, str],
        *,
        total_s: float | None = None,
        max_answer_bytes: int | None = None,
    ) -> OutboundAnswer:
        timeout = self._timeout if total_s is None else aiohttp.ClientTimeout(total=total_s, sock_connect=CONNECT_S)
        try:
            self.check_url(url)
            async with self._opened().request(
                method, url, data=body, headers=headers, allow_redirects=False, timeout=timeout
            ) as answer:
                if 300 <= answer.status < 400:
                    words = f"it answered {answer.status}, and redirects are not followed"
                    raise OutboundFailed(words, reason="redirect")
                return OutboundAnswer(answer.status, await _read(answer, max_answer_bytes or self._max_answer_bytes))
        except InvalidRequest as error:
            raise OutboundFailed(error.message, reason="refused") from error
        except TimeoutError as error:
            raise OutboundFailed("it did not answer in time", reason="timeout") from error
        except (aiohttp.ClientError, OSError, ValueError) as error:
            words = _words(error)
            raise OutboundFailed(words, reason="refused" if words == _REFUSED_WORDS else "failed") from error

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            connector = aiohttp.TCPConnector(
                limit=self._max_connections,
                force_close=True,
                use_dns_cache=False,
                resolver=self._resolver,
                socket_factory=self._make_socket,
            )
            self._session = aiohttp.ClientSession(
                connector=connector,
                timeout=self._timeout,
                trust_env=False,
                # A small compressed answer could decompress into a large one.
                auto_decompress=False,
                cookie_jar=aiohttp.DummyCookieJar(),
                headers={"user-agent": "tiergate", "accept-encoding": "identity"},
            )
        return self._session

    def _make_socket(self, address_info: Any) -> socket.socket:
        """The socket for exactly the address that is connected to next. Raises OSError if it is not allowed."""
        family, kind, protocol, _, target = address_info
        address = parse_address(str(target[0]))
        if address is None or not is_allowed(address, self._allowed_private):
            raise _AddressRefused("this address is not a public one")
        made = socket.socket(family, kind, protocol)
        made.setblocking(False)
        return made


async def _read(answer: aiohttp.ClientResponse, max_bytes: int) -> bytes:
    parts, size = [], 0
    async for chunk in answer.content.iter_any():
        size += len(chunk)
        if size > max_bytes:
            raise OutboundFailed(f"its answer is longer than {max_bytes} bytes", reason="too_large")
        parts.append(chunk)
    return b"".join(parts)


def _words(error: Exception) -> str:
    """A message for tenants. It reveals neither the addresses that a name resolves to in our network, nor paths."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, _AddressRefused) or "not a public one" in str(cause):
            return _REFUSED_WORDS
        cause = cause.__cause__ or (cause.os_error if isinstance(cause, aiohttp.ClientConnectorError) else None)
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return "its name is not known"
    if isinstance(error, aiohttp.ClientSSLError | aiohttp.ClientConnectorCertificateError):
        return "its certificate is not valid"
    if isinstance(error, aiohttp.ClientConnectorError):
        return "it cannot be connected to"
    return f"the connection failed ({type(error).__name__})"
