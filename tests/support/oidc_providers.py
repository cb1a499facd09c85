"""npm's `oidc-provider` in a process of its own, and browsers that log in there."""

import asyncio
import json
import shutil
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

import httpx

from gateway.settings import GatewaySettings
from tests.support.clients import kept_package
from tests.support.consoles import Visit, forms_of
from tests.support.gateways import Gateway, make_settings, running_gateway
from tests.support.ports import free_port
from tests.support.valkey import ValkeyProcess

VERSION = "9.13.3"
SECRET = "a secret+with/signs:that=need&quoting"
DEADLINE_S = 60
ROLES = {"operators": "platform-admin", "admins": "tenant-admin", "readers": "usage"}
ACCOUNTS: Mapping[str, Mapping[str, Any]] = {
    "olga": {"email": "olga@example.com", "email_verified": True, "roles": ["operators"]},
    "ada": {"email": "ada@example.com", "email_verified": True, "roles": ["admins", "else"], "tenant": "acme"},
    "rita": {"email": "rita@example.com", "email_verified": True, "roles": ["readers"], "tenant": "acme"},
    "nemo": {"email": "nemo@example.com", "email_verified": True, "roles": ["else"], "tenant": "acme"},
    "lost": {"email": "lost@example.com", "email_verified": True, "roles": ["readers"], "tenant": "nowhere"},
}
"""Name typed at the provider -> its claims."""


def oidc_settings(
    folder: Path, valkey: ValkeyProcess, issuer: str, *, host: str = "127.0.0.1", **fields: Any
) -> GatewaySettings:
    """host: the gateway's host name in browsers."""
    port = free_port()
    given: dict[str, Any] = {
        "port": port,
        "public_url": f"http://{host}:{port}",
        "oidc_issuer": issuer,
        "oidc_name": "Example",
        "oidc_client_id": "tiergate",
        "oidc_client_secret": SECRET,
        "oidc_roles": ROLES,
        "oidc_private_networks": "127.0.0.0/8",
    }
    return make_settings(folder, valkey.url, **(given | fields))


@dataclass(frozen=True)
class OidcScene:
    gateway: Gateway
    issuer: str

    @asynccontextmanager
    async def browser(self) -> AsyncIterator["Browser"]:
        async with httpx.AsyncClient(base_url=self.gateway.origin, timeout=DEADLINE_S) as http:
            yield Browser(http)


@dataclass(frozen=True)
class Browser(Visit):
    """A browser in which nobody is logged in yet."""

    seen: list[str] = field(default_factory=list)
    """The URLs of all redirects that were followed."""

    async def log_in(self, name: str, *, next: str = "/dashboard/settings") -> httpx.Response:
        """Log in, typing the name if the provider asks for one; returns the console's page at the end."""
        reply = await self.follow(await self.http.get("/dashboard/oidc/login", params={"next": next}))
        if reply.url.path.startswith("/interaction/"):
            [form] = forms_of(reply.text)
            typed = {**form.fields, "login": name, "password": "any"}
            reply = await self.follow(await self.http.post(urljoin(str(reply.url), form.action), data=typed))
        return reply

    async def log_out(self) -> httpx.Response:
        """Log out of the console; returns the answer that leads to the provider."""
        page = await self.page("/dashboard/settings")
        [form] = [form for form in forms_of(page) if form.action.endswith("/logout")]
        return await self.http.post(form.action, data=form.fields)

    async def log_out_at_provider(self, url: str) -> httpx.Response:
        """Confirm the logout at the provider."""
        reply = await self.follow(await self.http.get(url))
        [form] = forms_of(reply.text)
        said = {**form.fields, "logout": "yes"}
        return await self.follow(await self.http.post(urljoin(str(reply.url), form.action), data=said))

    async def follow(self, reply: httpx.Response) -> httpx.Response:
        while reply.next_request is not None:
            self.seen.append(str(reply.next_request.url))
            reply = await self.http.send(reply.next_request)
        return reply


@asynccontextmanager
async def oidc_scene(
    folder: Path, valkey: ValkeyProcess, *, accounts: Mapping[str, Any] = ACCOUNTS, **fields: Any
) -> AsyncIterator[OidcScene]:
    port = free_port()
    issuer = f"http://127.0.0.1:{port}"
    settings = oidc_settings(folder, valkey, issuer, **fields)
    given = {
        "port": port,
        "redirect_uri": f"{settings.public_url}/dashboard/oidc/callback",
        "post_logout_redirect_uri": f"{settings.public_url}/dashboard/login",
        "backchannel_logout_uri": f"{settings.public_url}/dashboard/oidc/backchannel-logout",
        "accounts": accounts,
    }
    async with _provider(folder / "provider", given), running_gateway(settings) as gateway:
        await gateway.post("/tenants", {"name": "acme", "tier": "pro"})
        yield OidcScene(gateway, issuer)


@asynccontextmanager
async def _provider(folder: Path, given: Mapping[str, Any]) -> AsyncIterator[None]:
    packages = await asyncio.to_thread(kept_package, "oidc-provider", VERSION)
    await asyncio.to_thread(folder.mkdir)
    script = folder / "oidc_provider.mjs"
    shutil.copy(Path(__file__).parent / script.name, script)
    # Node looks for modules beside the script.
    (folder / "node_modules").symlink_to(packages)
    process = await asyncio.create_subprocess_exec(
        "node", str(script), json.dumps(given), stdout=asyncio.subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        async with asyncio.timeout(DEADLINE_S):
            assert (await process.stdout.readline()).strip() == b"ready"
        yield
    finally:
        process.terminate()
        await process.communicate()
