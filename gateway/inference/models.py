"""`GET /v1/models`: every name that this key may put into `model`."""

from collections.abc import Sequence
from datetime import datetime

import msgspec
from fastapi import APIRouter
from starlette.responses import Response

from gateway.clock import utc_now
from gateway.domain.catalog import AdapterTerms, Catalog, TierTerms
from gateway.domain.principal import Principal
from gateway.http.errors import ModelNotFound
from gateway.services import PrincipalDep, ServicesDep
from protocol.responses import ModelCard, ModelList, ModelPrice, ModelTier
from router.fleet import AUTO, LARGE, SMALL, Fleet, Pool

router = APIRouter(prefix="/v1/models", tags=["models"])


@router.get("", response_class=Response, responses={200: {"content": {"application/json": {}}}})
async def list_models(principal: PrincipalDep, services: ServicesDep) -> Response:
    cards = visible_models(services.registry.fleet, services.catalog.current, principal, now=utc_now())
    return _json(ModelList(data=cards))


@router.get("/{model:path}", response_class=Response, responses={200: {"content": {"application/json": {}}}})
async def show_model(model: str, principal: PrincipalDep, services: ServicesDep) -> Response:
    cards = visible_models(services.registry.fleet, services.catalog.current, principal, now=utc_now())
    card = next((card for card in cards if card.id == model), None)
    if card is None:
        raise ModelNotFound(model)
    return _json(card)


def visible_models(fleet: Fleet, catalog: Catalog, principal: Principal, *, now: datetime) -> list[ModelCard]:
    tier = catalog.tier_of(principal)
    # Overflow pools have no name that a client could ask for.
    pools = [pool for pool in fleet.pools.values() if pool.overflow_of is None and _is_allowed(pool, tier)]
    shown = _Cards(catalog, tier, now)
    choices = [pool for pool in pools if pool.name in (SMALL, LARGE)]
    if choices:
        shown.add(AUTO, choices)
    for pool in pools:
        for name in (pool.name, pool.model_id):
            shown.add(name, [pool], also_named=(pool.name, pool.model_id), root=pool.model_id)
    for adapter in catalog.adapters_of(principal.tenant_id):
        bases = [pool for pool in pools if pool.model_id in adapter.variants]
        if bases and adapter.name not in shown.cards:
            shown.add(adapter.name, bases, adapter=adapter, root=adapter.name, parent=bases[0].model_id)
    return [card for name, card in shown.cards.items() if principal.may_use(*shown.names[name])]


class _Cards:
    """Model cards by name, in the order in which the names were added."""

    def __init__(self, catalog: Catalog, tier: TierTerms, now: datetime) -> None:
        self._catalog = catalog
        self._tier = tier
        self._now = now
        self._shown_tier = ModelTier(**{name: getattr(tier, name) for name in ModelTier.__struct_fields__})
        self.cards: dict[str, ModelCard] = {}
        self.names: dict[str, Sequence[str]] = {}
        """For each card, all names of the same model."""

    def add(
        self,
        name: str,
        pools: Sequence[Pool],
        *,
        adapter: AdapterTerms | None = None,
        also_named: Sequence[str] = (),
        root: str | None = None,
        parent: str | None = None,
    ) -> None:
        """The card's window is that of the widest of `pools`."""
        model = self._catalog.models.get(pools[0].model_id) if name != AUTO else None
        created = adapter.created_s if adapter else model.created_s if model else 0
        self.names[name] = (name, *also_named)
        self.cards[name] = ModelCard(
            id=name,
            created=created,
            max_model_len=max(pool.context_window for pool in pools),
            root=root,
            parent=parent,
            kind=pools[0].kind,
            pools=[pool.name for pool in pools],
            price={pool.name: self._price(pool, adapter) for pool in pools},
            tier=self._shown_tier,
        )

    def _price(self, pool: Pool, adapter: AdapterTerms | None) -> ModelPrice:
        adapter_id = str(adapter.id) if adapter else None
        price = self._catalog.prices.price_of(pool.model_id, adapter_id=adapter_id, tier=self._tier.name, now=self._now)
        return ModelPrice(**{name: getattr(price, name) for name in ModelPrice.__struct_fields__})


def _is_allowed(pool: Pool, tier: TierTerms) -> bool:
    return tier.allowed_pools is None or pool.name in tier.allowed_pools


def _json(value: ModelCard | ModelList) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")
