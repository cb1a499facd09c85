"""No page of the console shows or changes another tenant's objects, whatever is asked of it or sent to it.

Every path of PAGES is asked, so that a new page is, too; a new name in a path needs its object in `objects.py`.
"""

import re
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

import httpx
import pytest

from gateway.dashboard.pages import Page, UploadPage
from gateway.dashboard.routes import PAGES
from gateway.metering.store import UsageStore
from tests.gateway.billing.test_invoicing import event_of
from tests.gateway.isolation.objects import MAY, PRICE, Objects, make_objects, make_platforms_objects
from tests.support.clickhouse import ClickHouseProcess, GivenClickHouse, own_database
from tests.support.consoles import forms_of, visit
from tests.support.gateways import Gateway, make_settings, running_gateway
from tests.support.valkey import ValkeyProcess

NAME, OTHER = "alice", "bobby"
_SHARED = {"model_id", "position", "name", "version", "worker_id"}
"""Objects that are everybody's."""
ENDLESS = {"/fleet/events"}
"""Streams; for the platform's operators alone, which `test_streams_are_not_for_tenants` asks."""


@dataclass(frozen=True)
class Scene:
    gateway: Gateway
    key: str
    """Of one tenant, with every scope that a tenant's may have."""
    owner: str
    """The other one's key."""
    objects: Objects
    """Of the other one, and a request of it."""
    request_id: str


@pytest.fixture
async def scene(
    tmp_path: Path, valkey: ValkeyProcess, clickhouse: ClickHouseProcess | GivenClickHouse
) -> AsyncIterator[Scene]:
    with own_database(clickhouse) as url, closing(UsageStore(url)) as store:
        store.prepare()
        async with running_gateway(make_settings(tmp_path, valkey.url, clickhouse_url=url)) as gateway:
            await make_platforms_objects(gateway)
            key, _ = await make_objects(gateway, store, name=NAME)
            owner, objects = await make_objects(gateway, store, name=OTHER)
            of_other = event_of(UUID(objects["tenant_id"]), MAY, PRICE, tokens=(100, 0, 50), n=77)
            store.insert([of_other])
            yield Scene(gateway, key, owner, objects, of_other.request_id)


async def test_no_page_shows_another_tenants_objects(scene: Scene) -> None:
    objects, request_id = scene.objects, scene.request_id
    marks = marks_of(objects, request_id)
    leaks = []
    async with visit(scene.gateway, scene.key) as alice:
        for url in urls(objects, request_id):
            reply = await alice.http.get(url)
            assert reply.status_code in (200, 403, 404, 400, 303), (url, reply.status_code)
            # A refusal and a filter may repeat what was asked for.
            told = [mark for mark in marks if mark in reply.text and mark not in url]
            is_own_object = reply.status_code == 200 and any(mark in path_of(url) for mark in marks)
            if told or is_own_object:
                leaks.append((url, reply.status_code, told))
    assert leaks == []
    async with visit(scene.gateway, scene.owner) as bobby:
        for page in PAGES:
            # So that nothing above was refused because of how it was asked.
            if isinstance(page, Page) and "{" in page.path and "tenant-admin" in page.who:
                url = f"/dashboard{filled(page.path, objects, request_id)}"
                assert (await bobby.http.get(url, follow_redirects=True)).status_code == 200, url


async def test_no_form_changes_another_tenants_objects(scene: Scene) -> None:
    objects, request_id = scene.objects, scene.request_id
    gateway, others = scene.gateway, {"params": {"limit": 1000, "tenant_id": objects["tenant_id"]}}
    before = (await gateway.admin.get("/audit", **others)).json()["data"]
    assert before
    wrong = []
    async with visit(gateway, scene.key) as alice:
        token = forms_of(await alice.page("/dashboard/settings"))[0].fields["token"][0]
        for page in PAGES:
            if isinstance(page, Page):
                continue
            # What a form of any page may name; with a token that is right.
            named = {name: objects[name] for name in ("tenant_id", "user_row_id", "adapter_id", "invoice_id", "key_id")}
            fields = {"token": token, "tenant": objects["tenant_id"], "name": "mine", "user_id": "mine"} | named
            url = f"/dashboard{filled(page.path, objects, request_id)}"
            reply = await send(alice.http, url, fields, is_upload=isinstance(page, UploadPage))
            names_other = any(f"{{{name}}}" in page.path for name in named)
            if names_other and reply.status_code not in (403, 404):
                wrong.append((url, reply.status_code))
    assert wrong == []
    assert (await gateway.admin.get("/audit", **others)).json()["data"] == before


async def test_streams_are_not_for_tenants(scene: Scene) -> None:
    async with visit(scene.gateway, scene.key) as alice:
        for path in ENDLESS:
            assert (await alice.http.get(f"/dashboard{path}")).status_code == 403


def urls(objects: Objects, request_id: str) -> Iterator[str]:
    """Of every page with the other tenant's objects in its path, and with the other's in each filter."""
    asked = f"tenant={objects['tenant_id']}&from=2026-05-01&to=2026-06-01"
    filters = f"user={OTHER}-user&key={objects['key_id']}&adapter={objects['model']}&object={objects['invoice_id']}"
    for page in PAGES:
        if page.path not in ENDLESS:
            url = f"/dashboard{filled(page.path, objects, request_id)}"
            yield from (url, f"{url}?{asked}", f"{url}?{asked}&{filters}", f"{url}?tenant={OTHER}")


def filled(path: str, objects: Objects, request_id: str) -> str:
    known: Mapping[str, str] = {**objects, "request_id": request_id, "format": "csv", "kind": "model"}
    return re.sub(r"\{(\w+)\}", lambda found: known[found[1]], path)


def marks_of(objects: Objects, request_id: str) -> list[str]:
    """What stands on no page that is not the other's."""
    return [value for name, value in objects.items() if name not in _SHARED] + [OTHER, request_id]


def path_of(url: str) -> str:
    return url.partition("?")[0]


async def send(http: httpx.AsyncClient, url: str, fields: Mapping[str, str], *, is_upload: bool) -> httpx.Response:
    if not is_upload:
        return await http.post(url, data=dict(fields))
    files = {name: (name, b"{}") for name in ("config", "weights")}
    return await http.post(f"{url}?model=m-7b", data=dict(fields) | {"version": "1"}, files=files)
