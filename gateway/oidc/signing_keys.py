"""The provider's public keys: cached, and read again when a token is signed with an unknown one."""

import time
from typing import Any

import jwt
import msgspec

from gateway.http.outbound import Outbound
from gateway.oidc.errors import ProviderFailed, TokenRefused
from gateway.oidc.kept import Kept
from gateway.oidc.provider import Provider, read_json

MISSED_S = 10.0
"""After a key was missing even from a fresh set, the set is not read again for this long, whoever asks."""
_KIND_OF = {"RS": "RSA", "PS": "RSA", "ES": "EC", "Ed": "OKP"}
"""First two letters of the algorithm -> key type."""


class _KeySet(msgspec.Struct, frozen=True):
    keys: list[dict[str, Any]]


class SigningKeys:
    def __init__(self, outbound: Outbound, provider: Kept[Provider]) -> None:
        self._outbound = outbound
        self._provider = provider
        self._kept = Kept(self._read)
        self._missed_at = -float("inf")

    async def key(self, key_id: str | None, algorithm: str) -> jwt.PyJWK:
        """The key that signs with `algorithm`; key_id None: the only such key. Raises ProviderFailed, TokenRefused."""
        asked_at = time.monotonic()
        found = _fitting(await self._kept.get(), key_id, algorithm)
        if found is None and asked_at - self._missed_at > MISSED_S:
            found = _fitting(await self._kept.get(newer_than=asked_at), key_id, algorithm)
            if found is None:
                self._missed_at = time.monotonic()
        if found is None:
            raise TokenRefused("its token is signed with a key that the provider does not publish")
        return found

    async def check(self) -> None:
        """Raises ProviderFailed if there is no key."""
        if not await self._kept.get():
            raise ProviderFailed("the provider publishes no key that signs tokens")

    async def _read(self) -> list[jwt.PyJWK]:
        provider = await self._provider.get()
        told = await read_json(self._outbound, provider.jwks_uri, _KeySet, what="the provider's key set")
        return [key for each in told.keys if (key := _public_key(each)) is not None]


def _fitting(keys: list[jwt.PyJWK], key_id: str | None, algorithm: str) -> jwt.PyJWK | None:
    of_kind = [key for key in keys if key.key_type == _KIND_OF[algorithm[:2]]]
    if key_id is None:
        return of_kind[0] if len(of_kind) == 1 else None
    return next((key for key in of_kind if key.key_id == key_id), None)


def _public_key(told: dict[str, Any]) -> jwt.PyJWK | None:
    """None for a key that signs nothing here: one for encryption, a symmetric one, or one of a kind we do not know."""
    if told.get("kty") not in _KIND_OF.values() or told.get("use", "sig") != "sig":
        return None
    try:
        return jwt.PyJWK(told)
    except jwt.PyJWTError:
        return None
