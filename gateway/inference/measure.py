"""How large and how hard a request is: its prompt tokens, complexity and maximum cost."""

import asyncio
from collections.abc import Mapping
from typing import Any

import msgspec

from gateway.domain.catalog import AdapterTerms, TierTerms
from gateway.http.errors import GatewayError, InvalidRequest, Unavailable
from gateway.inference.affinity import affinity_of
from gateway.inference.own_fields import check_features, check_own_members, own_field_of
from gateway.inference.refusals import as_gateway_error
from gateway.inference.validate import Accepted, AcceptedGeneration
from gateway.services import Services
from gateway.upstream.bundles import BundleStore
from protocol.answer_format import asks_for_structure
from protocol.checks import output_limit
from protocol.context_window import CONTEXT_LENGTH_EXCEEDED, Place, prompt_too_long
from protocol.embeddings import EmbeddingsRequest
from protocol.messages import content_text
from protocol.requests import ChatCompletionRequest, GenerationRequest, list_prompts
from router.complexity import Complexity, chat_complexity, chat_prompt, text_complexity, text_prompt, unscored
from router.errors import RouteError
from router.fleet import AUTO, LARGE, SMALL, Fleet, Pool
from router.policy import RouteRequest, TierPolicy, looks_hard, possible_pools
from router.weights import Weights
from text.bundle import Bundle, TextTooLong
from text.prompts import encode_prompts, kept_tokens

LONG_CHARS = 16_384
"""Longer prompts are tokenized in a thread, so that other streams go on meanwhile. A prompt of this length takes about
5 ms on our machine."""
_CHAT_OVERHEAD_TOKENS = 16
"""A generous bound on the tokens that a chat template adds around one message, used where the template is unknown."""
_PLAIN = Complexity(0.0)
BYTES_PER_TOKEN = 3
"""Used to estimate a likely token count where only the bound of one token per byte is certain. For most languages and
tokenizers the estimate is on the high side."""


class Score(msgspec.Struct, frozen=True):
    """A request's score by one set of weights. by: `decision`, or `shadow` for weights that decide nothing.
    pool: the pool these weights choose."""

    by: str
    pool: str
    score: float


class Measured(msgspec.Struct, frozen=True):
    """route_request describes one answer, to the longest prompt. prompt_tokens is the sum over all prompts, each of
    which is billed once. num_choices is the number of answers to all prompts together."""

    route_request: RouteRequest
    is_scored: bool
    """Its complexity was scored."""
    prompt_tokens: int
    num_choices: int
    policy: TierPolicy
    pools: tuple[Pool, ...]
    """The pools that the request may go to, the preferred one first."""
    adapter_name: str | None
    adapter_id: str | None
    is_estimate: bool
    dearest_nanousd: int
    scores: tuple[Score, ...] = ()
    kept_tokens: int | None = None
    """How many of a prompt's last tokens were counted, if the request asks for truncation."""
    num_prompts: int = 1

    @property
    def most_tokens(self) -> int:
        """The most that a server may report for the request's prompts, or for its answers: all of the context window
        for each."""
        return max(self.num_prompts, self.num_choices) * max([pool.context_window for pool in self.pools])

    @property
    def tokens(self) -> int:
        return self.prompt_tokens + self.max_completion_tokens

    @property
    def max_completion_tokens(self) -> int:
        return self.num_choices * self.route_request.max_tokens


async def measure(accepted: AcceptedGeneration, services: Services, *, scores_all: bool = False) -> Measured:
    """scores_all: also score requests that name their model. Their score decides nothing, and would take a third of
    the gateway's time for the request.

    Raises the GatewayError for an unknown model, a prompt that fits nowhere or a pool that is not allowed."""
    request, tier, fleet = accepted.request, accepted.tier, services.registry.fleet
    check_model(accepted, fleet)
    adapter = adapter_of(accepted, fleet)
    policy = tier_policy(tier, services.router_weights)
    is_scored = scores_all or adapter is not None or request.model == AUTO
    complexity = _complexity(request, services.router_weights) if is_scored else _structure(request, fleet)
    tenant = accepted.principal.tenant_text
    route = RouteRequest(
        request_id=accepted.request_id,
        model=request.model,
        variants=variants_in(fleet, adapter.variants) if adapter else None,
        complexity=complexity.score,
        is_uncertain=complexity.is_uncertain,
        needs_large=complexity.needs_large,
        affinity=affinity_of(request, tenant),
        may_leave=not accepted.principal.is_local_only,
    )
    if is_scored and isinstance(request, ChatCompletionRequest) and not looks_hard(route, policy):
        is_warm = await services.conversations.is_warm(tenant, request.messages)
        route = msgspec.structs.replace(route, is_warm=is_warm)
    own_field = own_field_of(request)
    if own_field is not None:
        # An outside provider would not know the field.
        route = msgspec.structs.replace(route, may_leave=False)
    pools = reachable_pools(route, policy, fleet)
    if own_field is not None:
        check_own_members(pools, own_field)
    check_features(pools, request)
    if pools[0].kind != "chat":
        raise InvalidRequest(f"{request.model!r} makes embeddings, not completions", param="model")
    param: Place = "messages" if isinstance(request, ChatCompletionRequest) else "prompt"
    window = max([pool.context_window for pool in pools])
    limit = output_limit(request)
    num_output = tier.default_max_tokens if limit is None else limit
    kept = kept_tokens(request, window=window, num_output=num_output)
    try:
        counted = await count(request, pools, services.bundles, limit=window, kept=kept)
    except TextTooLong as error:
        raise _too_long(param, f"at least {error.least_tokens}", window) from None
    if not counted.is_estimate:
        _check_prompt(counted.longest, window, tier, param=param, has_answer=limit != 0)
    likely = counted.longest // BYTES_PER_TOKEN if counted.is_estimate else counted.longest
    route = msgspec.structs.replace(
        route,
        # An upper bound must not refuse a prompt that may fit by the member's own tokenizer.
        prompt_tokens=0 if counted.is_estimate else counted.longest,
        max_tokens=_default_max_tokens(tier, likely, pools) if limit is None else limit,
    )
    if route.prompt_tokens + route.max_tokens > min([pool.context_window for pool in pools]):
        pools = reachable_pools(route, policy, fleet)
    num_choices = (request.n or 1) * counted.num_prompts
    return Measured(
        route_request=route,
        is_scored=is_scored,
        prompt_tokens=counted.total,
        num_choices=num_choices,
        kept_tokens=kept,
        num_prompts=counted.num_prompts,
        policy=policy,
        pools=pools,
        adapter_name=adapter.name if adapter else None,
        adapter_id=str(adapter.id) if adapter else None,
        is_estimate=counted.is_estimate,
        dearest_nanousd=dearest_nanousd(accepted, adapter, pools, counted.total, num_choices * route.max_tokens),
        scores=_scores(accepted, route, services),
    )


def _scores(accepted: AcceptedGeneration, route: RouteRequest, services: Services) -> tuple[Score, ...]:
    """The decision's score, only for requests that leave the choice to the router; and the shadow weights' score, for
    all requests."""
    found, tier, shadow = [], accepted.tier, services.shadow_weights
    is_open = accepted.request.model == AUTO or (route.variants is not None and len(route.variants) > 1)
    if is_open:
        is_large = route.is_warm or looks_hard(route, tier_policy(tier, services.router_weights))
        found.append(Score("decision", LARGE if is_large else SMALL, route.complexity))
    if shadow is not None:
        seen = _complexity(accepted.request, shadow)
        asked = msgspec.structs.replace(
            route, complexity=seen.score, is_uncertain=seen.is_uncertain, needs_large=seen.needs_large
        )
        is_large = looks_hard(asked, tier_policy(tier, shadow))
        found.append(Score("shadow", LARGE if is_large else SMALL, seen.score))
    return tuple(found)


def dearest_nanousd(
    accepted: Accepted[Any],
    adapter: AdapterTerms | None,
    pools: tuple[Pool, ...],
    prompt_tokens: int,
    completion_tokens: int,
) -> int:
    """The most that the request may cost, whichever pool serves it and however much of its prompt is cached."""
    adapter_id = str(adapter.id) if adapter else None
    prices, tier, is_batch = accepted.catalog.prices, accepted.tier.name, accepted.batch_id is not None
    return max(
        [
            prices.price_of(
                pool.model_id, adapter_id=adapter_id, tier=tier, is_batch=is_batch, now=accepted.received_at
            ).most_nanousd(prompt_tokens=prompt_tokens, completion_tokens=completion_tokens)
            for pool in pools
        ]
    )


def reachable_pools(route: RouteRequest, policy: TierPolicy, fleet: Fleet) -> tuple[Pool, ...]:
    try:
        return possible_pools(route, policy, fleet)
    except RouteError as error:
        raise as_gateway_error(error, route.model) from None


def tier_policy(tier: TierTerms, weights: Weights) -> TierPolicy:
    """A target share of large calls takes precedence over a threshold."""
    share = tier.large_share
    return TierPolicy(
        name=tier.name,
        complexity_threshold=tier.complexity_threshold if share is None else weights.threshold_for(share),
        uncertain_threshold=tier.uncertain_threshold,
        allowed_pools=None if tier.allowed_pools is None else frozenset(tier.allowed_pools),
        on_saturation=tier.on_saturation,
        best_effort=tier.is_best_effort,
    )


def check_model(accepted: Accepted[Any], fleet: Fleet) -> None:
    """Raises Forbidden unless the key may use the model. The key's list may hold any of the model's names."""
    if accepted.principal.allowed_models is None:
        return
    model = accepted.request.model
    pool = fleet.pool_serving(model)
    accepted.principal.require_model(model, *(() if pool is None else (pool.name, pool.model_id)))


def adapter_of(
    accepted: Accepted[GenerationRequest] | Accepted[EmbeddingsRequest], fleet: Fleet
) -> AdapterTerms | None:
    """A declared model or pool takes precedence over an adapter of the same name; `create_adapter` refuses such a name.
    One that only a registered worker names takes no adapter's name away.

    Raises Unavailable for an adapter that no worker has checked yet, and InvalidRequest for one that fits no model."""
    model = accepted.request.model
    pool = fleet.pool_serving(model)
    if model == AUTO or (pool is not None and accepted.catalog.declares(pool)):
        return None
    adapter = accepted.catalog.adapter_of(accepted.principal.tenant_id, model)
    if adapter is not None and not adapter.variants:
        raise _not_served(adapter)
    return adapter


def _not_served(adapter: AdapterTerms) -> GatewayError:
    reasons = "; ".join(f"{model_id}: {reason}" for model_id, reason in adapter.unready.items())
    message = f"the adapter {adapter.name!r} cannot be served: {reasons or 'it has no variant'}"
    if adapter.is_pending:
        return Unavailable(message, retry_after_s=2, code="adapter_pending")
    return InvalidRequest(message, param="model", code="adapter_refused")


def variants_in(fleet: Fleet, by_model: Mapping[str, str]) -> dict[str, str]:
    """Pool name -> the adapter's name at the pool's members."""
    return {pool.name: by_model[pool.model_id] for pool in fleet.pools.values() if pool.model_id in by_model}


def _complexity(request: GenerationRequest, weights: Weights) -> Complexity:
    """The complexity of the hardest prompt, since one pool answers them all. Prompts of token ids are not scored."""
    if isinstance(request, ChatCompletionRequest):
        is_structured = asks_for_structure(request)
        return chat_complexity(request.messages, request.tools or (), weights=weights, is_structured=is_structured)
    scored = [text_complexity(prompt, weights) for prompt in list_prompts(request) if isinstance(prompt, str)]
    return max(scored, key=lambda each: (each.needs_large, each.score), default=Complexity(0.0))


def _structure(request: GenerationRequest, fleet: Fleet) -> Complexity:
    """For a request that names its model: no score, only whether it needs a large model. Plain unless it names the
    large pool, since only then is there a smaller one."""
    pool = fleet.pool_serving(request.model)
    if pool is not None and pool.name != LARGE:
        return _PLAIN
    if isinstance(request, ChatCompletionRequest):
        return unscored(chat_prompt(request.messages, request.tools or (), is_structured=asks_for_structure(request)))
    found = [unscored(text_prompt(prompt)) for prompt in list_prompts(request) if isinstance(prompt, str)]
    return next((each for each in found if each.needs_large), Complexity(0.0))


class Counted(msgspec.Struct, frozen=True):
    """Tokens in the longest prompt and in all prompts. is_estimate: the counts are upper bounds."""

    num_prompts: int
    longest: int
    total: int
    is_estimate: bool


async def count(
    request: GenerationRequest, pools: tuple[Pool, ...], bundles: BundleStore, *, limit: int, kept: int | None
) -> Counted:
    """Prompt tokens in the pool where they are most; an upper bound if any pool's tokenizer is unknown.

    The tokenizer of an outside provider is never known. Its pool is left out, and our own count stands until the
    provider reports its usage.

    Raises TextTooLong, at once, for a text that clearly cannot fit into `limit`.
    """
    of_pools = [bundles.bundle_of(pool.name) for pool in pools if pool.overflow_of is None]
    known = {id(bundle): bundle for bundle in of_pools if bundle is not None}
    bounds = upper_bounds(request)
    is_estimate = None in of_pools
    refusable = None if is_estimate else limit
    counts = [
        await asyncio.to_thread(_count_with, bundle, request, refusable, kept)
        if sum(bounds) > LONG_CHARS
        else _count_with(bundle, request, refusable, kept)
        for bundle in known.values()
    ]
    if is_estimate:
        counts.append(bounds if kept is None else [min(bound, kept) for bound in bounds])
    return Counted(
        num_prompts=len(bounds),
        longest=max(map(max, counts)),
        total=max(map(sum, counts)),
        is_estimate=is_estimate,
    )


def _count_with(bundle: Bundle, request: GenerationRequest, limit: int | None, kept: int | None) -> list[int]:
    """Tokens in each prompt."""
    return [len(prompt) for prompt in encode_prompts(bundle, request, kept=kept, limit=limit)]


def upper_bounds(request: GenerationRequest) -> list[int]:
    """An upper bound on the tokens of each prompt. No tokenizer makes more tokens than the text has UTF-8 bytes; the
    chat template's own tokens come on top."""
    if not isinstance(request, ChatCompletionRequest):
        return [len(prompt.encode() if isinstance(prompt, str) else prompt) for prompt in list_prompts(request)]
    bound = len(msgspec.json.encode(request.tools)) if request.tools else 0
    if request.chat_template_kwargs:
        bound += len(msgspec.json.encode(request.chat_template_kwargs))
    for message in request.messages:
        bound += len(content_text(message.content).encode()) + _CHAT_OVERHEAD_TOKENS
    return [bound]


def _check_prompt(longest: int, window: int, tier: TierTerms, *, param: Place, has_answer: bool) -> None:
    if longest + has_answer > window:
        raise _too_long(param, str(longest), window)
    if tier.context_tokens is not None and longest > tier.context_tokens:
        raise beyond_quota(param, longest, tier)


def beyond_quota(param: str, tokens: int, tier: TierTerms) -> InvalidRequest:
    owner = tier.owner_of("context_tokens")
    return InvalidRequest(
        f"{param}: {tokens} tokens, but the limit of {owner} is {tier.context_tokens}; shorten it",
        param=param,
        code="context_quota_exceeded",
    )


def _too_long(param: Place, tokens: str, window: int) -> InvalidRequest:
    return InvalidRequest(prompt_too_long(window, tokens, param), param=param, code=CONTEXT_LENGTH_EXCEEDED)


def _default_max_tokens(tier: TierTerms, prompt_tokens: int, pools: tuple[Pool, ...]) -> int:
    """The tier's default, or less if the narrowest pool that takes the prompt has less room in its context window."""
    rooms = [pool.context_window - prompt_tokens for pool in pools if pool.context_window > prompt_tokens]
    return min(tier.default_max_tokens, *rooms) if rooms else tier.default_max_tokens
