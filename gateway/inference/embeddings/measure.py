"""How many tokens the texts have in the pool of the one model that they may go to."""

import asyncio
from collections.abc import Mapping

from gateway.http.errors import InvalidRequest
from gateway.inference.measure import (
    LONG_CHARS,
    Measured,
    adapter_of,
    beyond_quota,
    check_model,
    dearest_nanousd,
    tier_policy,
    variants_in,
)
from gateway.inference.refusals import as_gateway_error
from gateway.inference.validate import Accepted
from gateway.services import Services
from protocol.context_window import CONTEXT_LENGTH_EXCEEDED, prompt_too_long
from protocol.embeddings import EmbeddingsRequest, inputs_of
from router.errors import RouteError
from router.fleet import AUTO
from router.policy import RouteRequest, possible_pools
from text.bundle import Bundle, TextTooLong


async def measure(accepted: Accepted[EmbeddingsRequest], services: Services) -> Measured:
    """Raises the GatewayError for an unknown model, a pool that is not allowed or a text that does not fit."""
    model, tier, fleet = accepted.request.model, accepted.tier, services.registry.fleet
    check_model(accepted, fleet)
    if model == AUTO:
        raise InvalidRequest("name a model: embeddings of different models cannot be compared", param="model")
    adapter = adapter_of(accepted, fleet)
    if adapter is not None and len(adapter.variants) > 1:
        raise InvalidRequest(
            f"the adapter {model!r} has variants for {' and '.join(sorted(adapter.variants))}, whose embeddings cannot "
            "be compared; name a model, or register the adapter for one of them",
            param="model",
        )
    variants = variants_in(fleet, adapter.variants) if adapter else None
    route, policy = _route(accepted, variants, prompt_tokens=0), tier_policy(tier, services.router_weights)
    try:
        # If there are several pools, they serve the same model.
        pool = possible_pools(route, policy, fleet)[0]
    except RouteError as error:
        raise as_gateway_error(error, model) from None
    bundle, window = services.bundles.bundle_of(pool.name), pool.context_window
    texts = inputs_of(accepted.request)
    try:
        counts = await _count(texts, bundle, limit=window)
    except TextTooLong as error:
        raise _too_long(f"at least {error.least_tokens}", window) from None
    if bundle is not None and max(counts) > window:
        raise _too_long(str(max(counts)), window)
    if bundle is not None and tier.context_tokens is not None and max(counts) > tier.context_tokens:
        raise beyond_quota("input", max(counts), tier)
    return Measured(
        # An upper bound must not refuse a text that may fit by the member's own tokenizer.
        route_request=_route(accepted, variants, prompt_tokens=0 if bundle is None else max(counts)),
        is_scored=False,
        prompt_tokens=sum(counts),
        num_choices=0,
        num_prompts=len(texts),
        policy=policy,
        pools=(pool,),
        adapter_name=adapter.name if adapter else None,
        adapter_id=str(adapter.id) if adapter else None,
        is_estimate=bundle is None,
        dearest_nanousd=dearest_nanousd(accepted, adapter, (pool,), sum(counts), 0),
    )


def _route(
    accepted: Accepted[EmbeddingsRequest], variants: Mapping[str, str] | None, *, prompt_tokens: int
) -> RouteRequest:
    return RouteRequest(
        request_id=accepted.request_id,
        model=accepted.request.model,
        variants=variants,
        prompt_tokens=prompt_tokens,
        can_move=False,
    )


async def _count(texts: list[str | list[int]], bundle: Bundle | None, *, limit: int) -> list[int]:
    """Tokens in each text. Without a bundle an upper bound: no tokenizer makes more tokens than a text has UTF-8
    bytes."""
    if bundle is None:
        return [len(text.encode() if isinstance(text, str) else text) for text in texts]
    if sum(map(len, texts)) > LONG_CHARS:
        return await asyncio.to_thread(_count_with, bundle, texts, limit)
    return _count_with(bundle, texts, limit)


def _count_with(bundle: Bundle, texts: list[str | list[int]], limit: int) -> list[int]:
    return [len(bundle.encode_text(text, limit=limit) if isinstance(text, str) else text) for text in texts]


def _too_long(num_tokens: str, window: int) -> InvalidRequest:
    return InvalidRequest(prompt_too_long(window, num_tokens, "input"), param="input", code=CONTEXT_LENGTH_EXCEEDED)
