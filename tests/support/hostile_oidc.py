"""An OpenID provider that signs its own tokens, and whose answers a test can change."""

import asyncio
import base64
import hashlib
import hmac
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import httpx
import jwt
from aiohttp import web
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from tests.support.members import serving_app

CODE = "a-code"
LOGOUT_EVENT = "http://schemas.openid.net/event/backchannel-logout"


class SigningKey:
    def __init__(self, key_id: str, algorithm: str = "RS256") -> None:
        self.key_id, self.algorithm = key_id, algorithm
        self.private: Any = (
            rsa.generate_private_key(65537, 2048)
            if algorithm.startswith(("RS", "PS"))
            else ec.generate_private_key(ec.SECP256R1())
        )

    @property
    def public_pem(self) -> bytes:
        pem: bytes = self.private.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
        return pem

    @property
    def jwk(self) -> dict[str, Any]:
        told = jwt.get_algorithm_by_name(self.algorithm).to_jwk(self.private.public_key(), as_dict=True)
        return {**told, "kid": self.key_id, "use": "sig", "alg": self.algorithm}

    def sign(self, claims: dict[str, Any], **header: Any) -> str:
        return jwt.encode(claims, self.private, self.algorithm, headers={"kid": self.key_id, **header})


@dataclass
class HostileProvider:
    """Behaves correctly until a test changes something."""

    issuer: str = ""
    key: SigningKey = field(default_factory=lambda: SigningKey("first"))
    published: list[SigningKey] = field(default_factory=list)
    discovery: dict[str, Any] = field(default_factory=dict)
    """Fields that override those of the discovery document."""
    token: str = ""
    """The ID token that is issued for a code."""
    granted: dict[str, Any] = field(default_factory=dict)
    """Further fields of the token response, which may override its own."""
    answers: dict[str, Any] = field(default_factory=dict)
    """Path -> a handler that answers instead."""
    num_asked: dict[str, int] = field(default_factory=dict)
    """Path -> number of requests."""
    headers: dict[str, str] = field(default_factory=dict)
    """Headers of the discovery document."""
    codes: dict[str, str] = field(default_factory=dict)
    """Code -> its PKCE challenge; each code can be redeemed once."""

    def claims(self, **changed: Any) -> dict[str, Any]:
        """The claims of a reader of the tenant acme, with changes; None removes a claim."""
        now = int(time.time())
        given = {
            **{"iss": self.issuer, "aud": "tiergate", "sub": "rita", "iat": now, "exp": now + 300},
            **{"email": "rita@example.com", "email_verified": True, "roles": ["readers"], "tenant": "acme"},
        }
        return {name: value for name, value in {**given, **changed}.items() if value is not None}

    def logout_claims(self, **changed: Any) -> dict[str, Any]:
        now = int(time.time())
        given = {"iss": self.issuer, "aud": "tiergate", "iat": now, "exp": now + 120, "jti": "once", "sub": "rita"}
        given["events"] = {LOGOUT_EVENT: {}}
        return {name: value for name, value in {**given, **changed}.items() if value is not None}

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.num_asked[request.path] = self.num_asked.get(request.path, 0) + 1
        if (other := self.answers.get(request.path)) is not None:
            response: web.StreamResponse = await other(request)
            return response
        match request.path:
            case "/.well-known/openid-configuration":
                return web.json_response(self._discovery() | self.discovery, headers=self.headers)
            case "/jwks":
                return web.json_response({"keys": [key.jwk for key in self.published or [self.key]]})
            case "/token":
                return await self._redeem(request)
        return web.Response(status=404)

    async def _redeem(self, request: web.Request) -> web.Response:
        form = await request.post()
        challenge = self.codes.pop(str(form["code"]), "")
        verified = base64.urlsafe_b64encode(hashlib.sha256(str(form["code_verifier"]).encode()).digest())
        if challenge != verified.decode().rstrip("="):
            return web.json_response({"error": "invalid_grant"}, status=400)
        return web.json_response({"id_token": self.token, "token_type": "Bearer", **self.granted})

    def _discovery(self) -> dict[str, Any]:
        places = {"authorization_endpoint": "authorize", "token_endpoint": "token", "jwks_uri": "jwks"}
        return {"issuer": self.issuer, **{name: f"{self.issuer}/{path}" for name, path in places.items()}}


@asynccontextmanager
async def hostile_provider() -> AsyncIterator[HostileProvider]:
    provider = HostileProvider()
    app = web.Application(handler_args={"handler_cancellation": True})
    app.router.add_route("*", "/{path:.*}", provider.answer)
    async with serving_app(app) as url:
        provider.issuer = url
        yield provider


@dataclass(frozen=True)
class Begun:
    """The parameters with which a browser was sent to the provider."""

    state: str
    nonce: str


async def begin(provider: HostileProvider, http: httpx.AsyncClient, *, code: str = CODE) -> Begun:
    """Start a login; the provider then accepts `code` for it."""
    reply = await http.get("/dashboard/oidc/login", params={"next": "/dashboard/settings"})
    assert reply.status_code == 303, reply.text
    asked = dict(parse_qsl(urlsplit(reply.headers["location"]).query))
    assert asked["code_challenge_method"] == "S256" and asked["response_type"] == "code"
    provider.codes[code] = asked["code_challenge"]
    return Begun(asked["state"], asked["nonce"])


async def end(http: httpx.AsyncClient, state: str, *, code: str = CODE, **fields: str) -> httpx.Response:
    return await http.get("/dashboard/oidc/callback", params={"state": state, "code": code, **fields})


def unsigned(claims: dict[str, Any]) -> str:
    return jwt.encode(claims, None, "none")


def altered(token: str, claims: dict[str, Any]) -> str:
    """The token with other claims under its old signature."""
    header, _, signature = token.split(".")
    return ".".join((header, _encode(json.dumps(claims).encode()).decode(), signature))


def with_public_key_as_secret(key: SigningKey, claims: dict[str, Any]) -> str:
    """A token signed by HMAC with the public key as the secret, which PyJWT refuses to make."""
    header = {"alg": "HS256", "typ": "JWT", "kid": key.key_id}
    signed = b".".join(_encode(json.dumps(part).encode()) for part in (header, claims))
    return (signed + b"." + _encode(hmac.digest(key.public_pem, signed, "sha256"))).decode()


def _encode(raw: bytes) -> bytes:
    return base64.urlsafe_b64encode(raw).rstrip(b"=")


async def hang(_request: web.Request) -> web.StreamResponse:
    await asyncio.sleep(3600)
    return web.Response()


async def flood(request: web.Request) -> web.StreamResponse:
    """Answer with a token of 50 MB."""
    response = web.StreamResponse(headers={"content-type": "application/json"})
    await response.prepare(request)
    await response.write(b'{"id_token": "')
    for _ in range(50):
        await response.write(b"a" * 10**6)
    await response.write(b'"}')
    return response
