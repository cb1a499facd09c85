"""No key sees, changes or learns of another tenant's objects, by any operation that the gateway documents.

How a new route gets its case: `cases.py`.
"""

import re
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx

from gateway.metering.store import UsageStore
from tests.gateway.isolation.cases import CASES, Case
from tests.gateway.isolation.objects import Objects, make_objects, make_platforms_objects
from tests.support.clickhouse import any_clickhouse, own_database
from tests.support.gateways import Gateway, make_settings, running_gateway
from tests.support.valkey import ValkeyProcess

_SHARED = {"model_id", "position", "name", "version", "worker_id"}
"""Objects that are everybody's."""


async def test_every_operation_keeps_tenants_apart(tmp_path: Path, valkey: ValkeyProcess) -> None:
    with (
        any_clickhouse(tmp_path / "clickhouse") as server,
        own_database(server) as url,
        closing(UsageStore(url)) as store,
    ):
        store.prepare()
        async with running_gateway(make_settings(tmp_path, valkey.url, clickhouse_url=url)) as gateway:
            operations = await documented(gateway)
            assert set(CASES) - operations == set(), "cases of operations that are no longer there"
            assert operations - set(CASES) == set(), "each needs a case, see tests/gateway/isolation/cases.py"
            await make_platforms_objects(gateway)
            intruder, _ = await make_objects(gateway, store, name="alice")
            owner, objects = await make_objects(gateway, store, name="bobby")
            marks = [value for name, value in objects.items() if name not in _SHARED] + ["bobby"]
            wrong = []
            async with client(gateway, intruder) as alice:
                for operation, case in asked():
                    reply = await send(alice, operation, case, objects)
                    answer = reply.text
                    told = [mark for mark in marks if mark in answer and mark not in str(reply.request.url)]
                    # A refusal may name what was asked for.
                    is_leak = reply.is_success and told
                    if reply.status_code not in case.statuses or is_leak:
                        wrong.append((operation, reply.status_code, told, answer[:300]))
            async with client(gateway, owner) as bobby:
                # What is deleted is missing afterwards.
                for operation, case in sorted(asked(), key=lambda each: each[0].startswith("DELETE")):
                    if case.has_control:
                        reply = await send(bobby, operation, case, objects)
                        if reply.status_code in (401, 403, 404):
                            wrong.append((f"{operation} by its owner", reply.status_code, [], reply.text[:300]))
    assert wrong == []


async def documented(gateway: Gateway) -> set[str]:
    """Every operation of the OpenAPI document."""
    document = (await gateway.admin.get(f"{gateway.origin}/openapi.json")).json()
    return {f"{method.upper()} {path}" for path, operations in document["paths"].items() for method in operations}


def asked() -> list[tuple[str, Case]]:
    return [(operation, case) for operation, case in CASES.items() if case.is_asked]


def client(gateway: Gateway, key: str) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=gateway.origin, headers={"Authorization": f"Bearer {key}"}, timeout=60)


async def send(client: httpx.AsyncClient, operation: str, case: Case, objects: Objects) -> httpx.Response:
    method, path = operation.split(" ", 1)
    url = re.sub(r"\{(\w+)\}", lambda found: objects[found[1]], path)
    query, headers = filled(case.query, objects), filled(case.headers, objects)
    headers = {name.replace("_", "-"): value for name, value in headers.items()}
    return await client.request(method, url, params=query, headers=headers, json=filled(case.body, objects))


def filled(value: Any, objects: Objects) -> Any:
    """With `{name}` in its strings replaced by that object's id."""
    if isinstance(value, str):
        return re.sub(r"\{(\w+)\}", lambda found: objects[found[1]], value)
    if isinstance(value, Mapping):
        return {name: filled(each, objects) for name, each in value.items()}
    return [filled(each, objects) for each in value] if isinstance(value, list) else value
