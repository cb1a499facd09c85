"""What one tenant's key asks of another's objects, for every operation of the gateway's OpenAPI document.

A new route needs one entry in CASES, under `METHOD /path/{with_parameters}` as the document spells it:

- `hidden()`: the path names another tenant's object, which must be a 404. Path parameters are filled from the objects
  of that name (`objects.py`; a new kind of object is made there, under its path parameter's name).
- `hidden(body={...})`: the same for a route that takes a body. `{name}` in its strings is filled in the same way.
- `refused(...)`: for the platform only, or names another tenant as such: 403 or 404.
- `own(...)`: a list or a sum: answered, and nothing in the answer is another tenant's.
- `public()`: has nothing of any tenant, or needs no key.

Keys are sent with every scope that a tenant may have, so that no refusal is only for want of one.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Json = Mapping[str, Any]


@dataclass(frozen=True)
class Case:
    statuses: frozenset[int]
    body: Json | None = None
    query: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    has_control: bool = False
    """The owner's own key gets something else than a refusal: otherwise the 404 would prove nothing."""
    is_asked: bool = True


def hidden(body: Json | None = None, *, query: Mapping[str, str] | None = None, **headers: str) -> Case:
    return Case(frozenset({404}), body, query or {}, headers, has_control=True)


def refused(body: Json | None = None, *, query: Mapping[str, str] | None = None) -> Case:
    return Case(frozenset({403, 404}), body, query or {})


def own(body: Json | None = None, *, query: Mapping[str, str] | None = None) -> Case:
    return Case(frozenset({200}), body, query or {})


def public() -> Case:
    return Case(frozenset(), is_asked=False)


_CHAT = {"model": "{model}", "messages": [{"role": "user", "content": "Hi!"}], "max_tokens": 1}
_TIMES = {"start_time": "0"}
_PRICE = {"prompt_nanousd": 1, "completion_nanousd": 1}
_MONTH = {"from": "2026-05-01", "to": "2026-06-01"}

CASES: dict[str, Case] = {
    "GET /health": public(),
    "GET /ready": public(),
    "GET /metrics": public(),
    "POST /v1/chat/completions": hidden(_CHAT),
    "POST /v1/completions": hidden({"model": "{model}", "prompt": "Hi!", "max_tokens": 1}),
    "POST /v1/embeddings": hidden({"model": "{model}", "input": "Hi!"}),
    "POST /v1/tokenize": hidden({"model": "{model}", "prompt": "Hi!"}),
    "POST /v1/detokenize": hidden({"model": "{model}", "tokens": [1]}),
    "POST /v1/route": hidden(_CHAT),
    "GET /v1/models": own(),
    "GET /v1/models/{model}": hidden(),
    "POST /v1/responses": hidden({"model": "m-7b", "input": "Hi!", "previous_response_id": "{response_id}"}),
    "GET /v1/responses/{response_id}": hidden(),
    "GET /v1/responses/{response_id}/input_items": hidden(),
    "DELETE /v1/responses/{response_id}": hidden(),
    "GET /v1/sessions": own(),
    "GET /v1/sessions/{session_id}": hidden(),
    "POST /v1/sessions/{session_id}/branch": hidden({"id": "branch"}),
    "DELETE /v1/sessions/{session_id}": hidden(),
    "GET /v1/files": own(),
    "POST /v1/files": public(),
    "GET /v1/files/{file_id}": hidden(),
    "GET /v1/files/{file_id}/content": hidden(),
    "DELETE /v1/files/{file_id}": hidden(),
    "GET /v1/batches": own(),
    "POST /v1/batches": hidden(
        {"input_file_id": "{file_id}", "endpoint": "/v1/completions", "completion_window": "24h"}
    ),
    "GET /v1/batches/{batch_id}": hidden(),
    "POST /v1/batches/{batch_id}/cancel": hidden(),
    "GET /v1/usage": own(query=_MONTH | {"group_by": "request"}),
    "GET /v1/limits": own(query={"user": "bobby"}),
    "GET /v1/organization/usage/completions": own(query=_TIMES | {"group_by": "project_id"}),
    "GET /v1/organization/costs": own(query=_TIMES | {"group_by": "project_id"}),
    "GET /admin/v1/tenants": own(query={"with_deleted": "true"}),
    "POST /admin/v1/tenants": refused({"name": "third", "tier": "free"}),
    "GET /admin/v1/tenants/{tenant_id}": hidden(),
    "PATCH /admin/v1/tenants/{tenant_id}": hidden({"user_limits": {"concurrency": 1}}),
    "DELETE /admin/v1/tenants/{tenant_id}": refused(),
    "GET /admin/v1/tenants/{tenant_id}/sessions": hidden(),
    "PATCH /admin/v1/tenants/{tenant_id}/sessions": hidden({"overflow": "summary"}),
    "GET /admin/v1/keys": own(),
    "POST /admin/v1/keys": hidden({"tenant_id": "{tenant_id}", "name": "k"}),
    "GET /admin/v1/keys/{key_id}": hidden(),
    "PATCH /admin/v1/keys/{key_id}": hidden({"name": "mine"}),
    "POST /admin/v1/keys/{key_id}/rotate": hidden({"overlap_s": 60}),
    "DELETE /admin/v1/keys/{key_id}": hidden(),
    "GET /admin/v1/users": own(),
    "POST /admin/v1/users": hidden({"tenant_id": "{tenant_id}", "user_id": "x", "limits": {}}),
    "GET /admin/v1/users/{user_row_id}": hidden(),
    "PATCH /admin/v1/users/{user_row_id}": hidden({"limits": {"concurrency": 1}}),
    "DELETE /admin/v1/users/{user_row_id}": hidden(),
    "GET /admin/v1/tiers": own(),
    "POST /admin/v1/tiers": refused({"name": "mine"}),
    "GET /admin/v1/tiers/{name}": public(),
    "PATCH /admin/v1/tiers/{name}": refused({"concurrency": 1}),
    "GET /admin/v1/models": own(),
    "POST /admin/v1/models": refused({"id": "x", "pool": "x", "context_window": 5}),
    "DELETE /admin/v1/models/{model_id}": refused(),
    "GET /admin/v1/adapters": own(),
    "POST /admin/v1/adapters": refused({"tenant_id": "{tenant_id}", "name": "x", "variants": {"m-7b": "x"}}),
    "GET /admin/v1/adapters/{adapter_id}": hidden(),
    "PUT /admin/v1/adapters/{adapter_id}/variants/{model_id}": refused({"source": "file:///x"}),
    "DELETE /admin/v1/adapters/{adapter_id}": hidden(),
    "GET /admin/v1/prices": own(),
    "POST /admin/v1/prices": refused({"model_id": "m-7b", **_PRICE}),
    "DELETE /admin/v1/prices/{version}": refused(),
    "GET /admin/v1/prices/surcharges": refused(),
    "POST /admin/v1/prices/surcharges": refused({"model_id": "m-7b", "adapter_id": "{adapter_id}", "token_nanousd": 1}),
    "DELETE /admin/v1/prices/surcharges/{version}": refused(),
    "GET /admin/v1/prices/discounts": refused(),
    "POST /admin/v1/prices/discounts": refused({"tier": "free", "basis_points": 1}),
    "DELETE /admin/v1/prices/discounts/{version}": refused(),
    "POST /admin/v1/prices/rerate": refused(
        {"tenant_id": "{tenant_id}", "start": "2026-03-01T00:00:00Z", "end": "2026-04-01T00:00:00Z"}
    ),
    "GET /admin/v1/invoices": own(),
    "POST /admin/v1/invoices": refused({"tenant_id": "{tenant_id}", "month": "2026-03"}),
    "GET /admin/v1/invoices/{invoice_id}": hidden(),
    "DELETE /admin/v1/invoices/{invoice_id}": refused(),
    "GET /admin/v1/invoices/{invoice_id}/lines/{position}/requests": hidden(),
    "GET /admin/v1/invoices/{invoice_id}/document": hidden(query={"format": "csv"}),
    "POST /admin/v1/invoices/{invoice_id}/recalculate": refused({}),
    "POST /admin/v1/invoices/{invoice_id}/finalize": refused({}),
    "POST /admin/v1/invoices/{invoice_id}/credit-notes": refused({"net_nanousd": 1, "reason": "x"}),
    "GET /admin/v1/credits": own(),
    "POST /admin/v1/credits": refused({"tenant_id": "{tenant_id}", "amount_nanousd": 1, "note": "x"}),
    "GET /admin/v1/credits/{tenant_id}/balance": hidden(),
    "GET /admin/v1/billing-accounts/{tenant_id}": hidden(),
    "PUT /admin/v1/billing-accounts/{tenant_id}": refused({"recipient": "x"}),
    "GET /admin/v1/tenants/{tenant_id}/cache": hidden(),
    "PATCH /admin/v1/tenants/{tenant_id}/cache": hidden({"mode": "exact"}),
    "DELETE /admin/v1/tenants/{tenant_id}/cache": hidden(),
    "GET /admin/v1/guardrails": own(),
    "POST /admin/v1/guardrails": refused({"tenant_id": "{tenant_id}", "name": "x", "url": "https://example.com/"}),
    "GET /admin/v1/guardrails/{guardrail_id}": hidden(),
    "PATCH /admin/v1/guardrails/{guardrail_id}": hidden({"is_enabled": False}),
    "DELETE /admin/v1/guardrails/{guardrail_id}": hidden(),
    "GET /admin/v1/tools": own(),
    "POST /admin/v1/tools": refused(
        {
            "tenant_id": "{tenant_id}",
            "name": "x",
            "description": "x",
            "parameters": {"type": "object"},
            "url": "https://example.com/",
        }
    ),
    "GET /admin/v1/tools/{tool_id}": hidden(),
    "PATCH /admin/v1/tools/{tool_id}": hidden({"is_enabled": False}),
    "DELETE /admin/v1/tools/{tool_id}": hidden(),
    "GET /admin/v1/webhooks": own(),
    "POST /admin/v1/webhooks": refused({"tenant_id": "{tenant_id}", "url": "https://example.com/", "events": ["ping"]}),
    "GET /admin/v1/webhooks/{webhook_id}/secret": hidden(),
    "GET /admin/v1/webhooks/{webhook_id}/deliveries": hidden(),
    "POST /admin/v1/webhooks/{webhook_id}/ping": hidden({}),
    "DELETE /admin/v1/webhooks/{webhook_id}": hidden(),
    "GET /admin/v1/workers": refused(),
    "PATCH /admin/v1/workers/{worker_id}": refused({"is_drained": True}),
    "GET /admin/v1/usage": hidden(query=_MONTH | {"tenant_id": "{tenant_id}"}),
    "GET /admin/v1/usage/refusals": hidden(query=_MONTH | {"tenant_id": "{tenant_id}"}),
    "GET /admin/v1/reconciliation": refused(),
    "GET /admin/v1/erasures": own(),
    "POST /admin/v1/erasures": hidden({"tenant_id": "{tenant_id}", "user_id": "nobody"}),
    "GET /admin/v1/erasures/{erasure_id}": hidden(),
    "POST /admin/v1/erasures/{erasure_id}/verification": refused({}),
    "GET /admin/v1/audit": own(),
    "GET /admin/v1/audit/export": own(),
}
