"""Seeds a new platform with what it needs to serve: models, prices, adapters, and two tenants with a key each.

Uses the admin API, as any administrator would. What exists already is kept.
"""

import time
import zlib
from collections.abc import Mapping, Sequence

import httpx
import msgspec

from router.fleet import SMALL
from tiergate.admin.client import AdminClient, Json
from tiergate.failure import Failure
from tiergate.up.checkpoints import Checkpoint
from tiergate.up.secrets import Secrets
from tiergate.up.service import PROBE_PAUSE_S

TIMEOUT_S = 10.0
SEEN_WITHIN_S = 30.0
TENANTS = {"enterprise_key": ("acme", "enterprise"), "free_key": ("hobby", "free")}
# Prices of a prompt, cached prompt and completion token, in 1e-9 dollars.
_SMALL_PRICE, _LARGE_PRICE = (100, 25, 400), (900, 225, 3600)


class ServedModel(msgspec.Struct, kw_only=True, frozen=True):
    """The model and adapters that a worker reports to serve."""

    checkpoint: Checkpoint
    context_window: int
    adapters: tuple[str, ...]


def ask_worker(checkpoint: Checkpoint, url: str, *, worker_key: str) -> ServedModel:
    """Ask the worker for the context window and the adapters that it actually has. Raises Failure."""
    headers = {"Authorization": f"Bearer {worker_key}"}
    try:
        report = httpx.get(f"{url}/load", headers=headers, timeout=TIMEOUT_S).raise_for_status().json()
    except httpx.HTTPError as error:
        raise Failure(f"the worker of {checkpoint.name} does not tell its load: {error}", exit_code=1) from error
    return ServedModel(
        checkpoint=checkpoint, context_window=report["max_model_len"], adapters=tuple(report["adapters"])
    )


def await_replicas(client: AdminClient, urls: Sequence[str]) -> None:
    """Wait until the gateway sees every worker as healthy, by its heartbeats. Raises Failure."""
    deadline = time.monotonic() + SEEN_WITHIN_S
    while missing := set(urls) - {worker["url"] for worker in client.rows("/workers") if worker["is_healthy"]}:
        if time.monotonic() > deadline:
            raise Failure(f"the gateway does not see the worker at {min(missing)}", exit_code=1)
        time.sleep(PROBE_PAUSE_S)


def seed_models(client: AdminClient, served: Sequence[ServedModel]) -> None:
    """Raises Failure."""
    declared = {model["id"]: model for model in client.rows("/models")}
    _retire_others(client, declared, served)
    priced = {price["model_id"] for price in client.rows("/prices")}
    for model in served:
        name, pool = model.checkpoint.name, model.checkpoint.pool
        fields = {"id": name, "pool": pool, "context_window": model.context_window}
        if not fields.items() <= declared.get(name, {}).items():
            client.post("/models", fields)
        if name not in priced:
            prompt, cached, completion = _SMALL_PRICE if pool == SMALL else _LARGE_PRICE
            prices = {"prompt_nanousd": prompt, "cached_prompt_nanousd": cached, "completion_nanousd": completion}
            client.post("/prices", {"model_id": name, **prices})
    _seed_adapters(client, served)


def seed_tenants(client: AdminClient, kept: Secrets, *, base_url: str) -> Secrets:
    """Create the two tenants if they are missing, and a new key for each whose kept key does not work.

    Returns the secrets with the new keys. Raises Failure.
    """
    ids = {tenant["name"]: tenant["id"] for tenant in client.rows("/tenants")}
    keys: dict[str, str] = {}
    for field, (name, tier) in TENANTS.items():
        kept_key: str = getattr(kept, field)
        if kept_key and _is_accepted(kept_key, base_url):
            continue
        tenant_id = ids.get(name) or client.post("/tenants", {"name": name, "tier": tier})["id"]
        draft = {"tenant_id": tenant_id, "name": "up", "scopes": ["inference", "usage"]}
        keys[field] = client.post("/keys", draft)["key"]
    return msgspec.structs.replace(kept, **keys)


def _retire_others(client: AdminClient, declared: Mapping[str, Json], served: Sequence[ServedModel]) -> None:
    """Move models of earlier runs out of our pools, to pools without workers, since a pool serves one model."""
    holders = {model.checkpoint.pool: model.checkpoint.name for model in served}
    for name, model in declared.items():
        if holders.get(model["pool"], name) != name:
            retired = f"retired-{zlib.crc32(name.encode()):08x}"
            fields = {"id": name, "pool": retired, "context_window": model["context_window"], "kind": model["kind"]}
            client.post("/models", fields)


def _seed_adapters(client: AdminClient, served: Sequence[ServedModel]) -> None:
    variants: dict[str, dict[str, str]] = {}
    for model in served:
        for adapter in model.adapters:
            variants.setdefault(adapter, {})[model.checkpoint.name] = adapter
    public = {adapter["name"]: adapter for adapter in client.rows("/adapters") if adapter["tenant_id"] is None}
    for name, wanted in variants.items():
        existing = public.get(name)
        if existing is not None and wanted.items() <= existing["variants"].items():
            continue
        if existing is not None:
            client.delete(f"/adapters/{existing['id']}")
            wanted = {**existing["variants"], **wanted}
        client.post("/adapters", {"name": name, "variants": wanted})


def _is_accepted(key: str, base_url: str) -> bool:
    try:
        answer = httpx.get(f"{base_url}/models", headers={"Authorization": f"Bearer {key}"}, timeout=TIMEOUT_S)
    except httpx.HTTPError as error:
        raise Failure(f"the gateway does not answer: {error}", exit_code=1) from error
    return answer.status_code != httpx.codes.UNAUTHORIZED
