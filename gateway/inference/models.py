"""`GET /v1/models`: every name that this tenant may put into `model`."""

from collections.abc import Collection

import msgspec
from fastapi import APIRouter
from starlette.responses import Response

from gateway.domain.catalog import Catalog
from gateway.domain.principal import Principal
from gateway.http.errors import ModelNotFound
from gateway.services import PrincipalDep, ServicesDep
from protocol.responses import ModelCard, ModelList
from router.fleet import AUTO, LARGE, SMALL, Fleet, Pool

router = APIRouter(prefix="/v1/models", tags=["models"])


@router.get("", response_class=Response, responses={200: {"content": {"application/json": {}}}})
async def list_models(principal: PrincipalDep, services: ServicesDep) -> Response:
    cards = visible_models(services.registry.fleet, services.catalog.current, principal)
    return _json(ModelList(data=cards))


@router.get("/{model:path}", response_class=Response, responses={200: {"content": {"application/json": {}}}})
async def show_model(model: str, principal: PrincipalDep, services: ServicesDep) -> Response:
    cards = visible_models(services.registry.fleet, services.catalog.current, principal)
    card = next((card for card in cards if card.id == model), None)
    if card is None:
        raise ModelNotFound(model)
    return _json(card)


def visible_models(fleet: Fleet, catalog: Catalog, principal: Principal) -> list[ModelCard]:
    tier = catalog.tiers.get(principal.tier)
    allowed = tier.allowed_pools if tier else None
    pools = [pool for pool in fleet.pools.values() if _is_visible(pool, allowed)]
    cards = {}
    choices = [pool for pool in pools if pool.name in (SMALL, LARGE)]
    if choices:
        window = max(pool.context_window for pool in choices)
        cards[AUTO] = ModelCard(id=AUTO, created=0, max_model_len=window)
    for pool in pools:
        model = catalog.models.get(pool.model_id)
        created = model.created_s if model else 0
        for name in (pool.name, pool.model_id):
            cards[name] = ModelCard(id=name, created=created, max_model_len=pool.context_window, root=pool.model_id)
    served = {pool.model_id for pool in pools}
    for adapter in catalog.adapters_of(principal.tenant_id):
        bases = [model_id for model_id in adapter.variants if model_id in served]
        if bases and adapter.name not in cards:
            cards[adapter.name] = ModelCard(
                id=adapter.name, created=adapter.created_s, root=adapter.name, parent=bases[0]
            )
    return list(cards.values())


def _is_visible(pool: Pool, allowed: Collection[str] | None) -> bool:
    """Overflows serve under no name that could be asked for."""
    return pool.overflow_of is None and (allowed is None or pool.name in allowed)


def _json(value: ModelCard | ModelList) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")
