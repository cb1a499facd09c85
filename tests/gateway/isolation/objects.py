"""One of each kind of object that a tenant can have, by the name of its path parameter."""

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from gateway.clock import utc_now
from gateway.domain.prices.price_book import RequestPrice
from gateway.domain.visits.service import begin_visit
from gateway.metering.store import UsageStore
from gateway.sessions.conversation import Conversation, Raw, describe
from gateway.sessions.responses import ResponseMeta, StoredResponse
from gateway.sessions.store import Place
from tests.gateway.billing.test_invoicing import event_of
from tests.support.gateways import Gateway

MAY = datetime(2026, 5, 10, 12, tzinfo=UTC)
PRICE = RequestPrice("p", prompt_nanousd=1, completion_nanousd=2)
SCOPES = ["inference", "usage", "tenant-admin"]
"""All that a tenant's key may have."""
Objects = dict[str, str]


async def make_platforms_objects(gateway: Gateway) -> None:
    await gateway.post("/models", {"id": "m-7b", "pool": "small", "context_window": 512})
    await gateway.post("/prices", {"model_id": "m-7b", "prompt_nanousd": 1, "completion_nanousd": 2})


async def make_objects(gateway: Gateway, store: UsageStore, *, name: str) -> tuple[str, Objects]:
    """The key of a new tenant that has every scope a tenant may have, and its objects. `name` is in all their names."""
    tenant_id = (await gateway.post("/tenants", {"name": name, "tier": "pro"}))["id"]
    owner = {"tenant_id": tenant_id}
    admin = await gateway.post("/keys", {**owner, "name": f"{name}-admin", "scopes": SCOPES})
    key = await gateway.post("/keys", {**owner, "name": f"{name}-key"})
    model = f"{name}-voice"
    adapter = await gateway.post("/adapters", {**owner, "name": model, "variants": {"m-7b": model}})
    user = await gateway.post("/users", {**owner, "user_id": f"{name}-user", "limits": {"concurrency": 2}})
    erased = await gateway.admin.post("/erasures", json={**owner, "user_id": f"{name}-left"})
    tool = await gateway.post("/tools", {**owner, **_tool(f"{name}-tool")})
    url = f"https://{name}.example.com/hook"
    webhook = await gateway.post("/webhooks", {**owner, "url": url, "events": ["ping"]})
    hook = {"name": f"{name}-words", "url": url, "is_enabled": False}
    guardrail = await gateway.post("/guardrails", {**owner, **hook})
    store.insert([event_of(UUID(tenant_id), MAY + timedelta(seconds=1), PRICE, tokens=(100, 0, 50), n=6)])
    await gateway.admin.put(f"/billing-accounts/{tenant_id}", json={"recipient": name})
    await gateway.post("/credits", {**owner, "amount_nanousd": 5, "note": f"{name} paid"})
    invoice = await gateway.post("/invoices", {**owner, "month": "2026-05"})
    assert (await gateway.admin.post(f"/invoices/{invoice['id']}/finalize", json={})).status_code == 200
    async with gateway.client(str(key["key"])) as own:
        form: dict[str, Any] = {"data": {"purpose": "batch"}, "files": {"file": (f"{name}.jsonl", name.encode())}}
        file = (await own.post("/files", **form)).json()
        asked = {"input_file_id": file["id"], "endpoint": "/v1/completions", "completion_window": "24h"}
        batch = (await own.post("/batches", json=asked)).json()
    return str(admin["key"]), {
        "file_id": file["id"],
        "batch_id": batch["id"],
        "tenant_id": tenant_id,
        "key_id": key["id"],
        "user_row_id": user["id"],
        "visit_id": await _visit(gateway, key["id"]),
        "model": model,
        "model_id": "m-7b",
        "adapter_id": adapter["id"],
        "tool_id": tool["id"],
        "response_id": await _response(gateway, tenant_id, f"resp_{name}"),
        "session_id": await _session(gateway, tenant_id, f"{name}-session"),
        "webhook_id": webhook["id"],
        "guardrail_id": guardrail["id"],
        "erasure_id": erased.json()["id"],
        "invoice_id": invoice["id"],
        "position": "1",
        "name": "pro",
        "version": "1",
        "worker_id": "w",
    }


async def _visit(gateway: Gateway, key_id: str) -> str:
    now = utc_now()
    sessions, until = gateway.services.sessions, now + timedelta(hours=1)
    return str(await begin_visit(sessions, UUID(key_id), address="", browser="", expires_at=until, now=now))


async def _response(gateway: Gateway, tenant_id: str, response_id: str) -> str:
    said = StoredResponse(response=Raw(b"{}"), input_items=[], messages=[Raw(b'{"role":"user","content":"Hi!"}')])
    meta = ResponseMeta(id=response_id, created_at=MAY)
    await gateway.services.response_store.create(Place(tenant_id, response_id), meta, said)
    return response_id


async def _session(gateway: Gateway, tenant_id: str, session_id: str) -> str:
    value = Conversation(messages=[Raw(b'{"role":"user","content":"Hi!"}')])
    meta = describe(value, session_id=session_id, before=None, num_left=0, revision="r", now=MAY)
    await gateway.services.session_store.create(Place(tenant_id, session_id), meta, value)
    return session_id


def _tool(name: str) -> dict[str, Any]:
    parameters = {"type": "object", "properties": {}, "additionalProperties": False}
    return {"name": name, "description": "d", "parameters": parameters, "url": "https://example.com/"}
