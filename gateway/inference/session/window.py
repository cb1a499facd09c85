"""Which turns of a conversation have to leave, so that the rest and the answer fit into the context window."""

from gateway.http.errors import InvalidRequest
from gateway.inference.measure import (
    BYTES_PER_TOKEN,
    adapter_of,
    count,
    reachable_pools,
    tier_policy,
    upper_bounds,
    variants_in,
)
from gateway.inference.session.prompt import Prompt
from gateway.inference.validate import AcceptedGeneration
from gateway.services import Services
from protocol.checks import output_limit
from protocol.legacy import modern
from router.fleet import Pool
from router.policy import RouteRequest
from text.bundle import TextTooLong

_ANSWER_SHARE = 4
"""A request without an output limit reserves at most this fraction (1/4) of the window for its answer."""


async def turns_to_leave(services: Services, accepted: AcceptedGeneration, prompt: Prompt) -> int:
    """How many of the first turns leave. When the window is full, more leave than necessary, until the rest fills three
    quarters of it, so that the next requests share a prefix and find it in the cache. The last turn always stays.

    Raises InvalidRequest if the last turn alone is larger than a session may be."""
    least = _over_bytes(prompt, services.settings.session_max_bytes)
    most = len(prompt.turns) - 1
    pools = _pools(services, accepted)
    room = _room(accepted, pools)
    # The definitions and results of server tools come on top, so leave room for them.
    has_tools = bool(getattr(accepted.request, "server_tools", None))
    target = room * 3 // 4
    if await _fits(services, prompt, pools, least, target if has_tools else room):
        return least
    low, high = min(least + 1, most), most
    while low < high:
        middle = (low + high) // 2
        if await _fits(services, prompt, pools, middle, target):
            high = middle
        else:
            low = middle + 1
    return low


def _over_bytes(prompt: Prompt, max_bytes: int) -> int:
    size = sum(len(bytes(message)) for message in prompt.system)
    for number in range(len(prompt.turns) - 1, -1, -1):
        size += sum(len(bytes(message)) for message in prompt.turns[number])
        if size > max_bytes:
            if number == len(prompt.turns) - 1:
                raise InvalidRequest(
                    f"messages: {size} bytes, but a session holds at most {max_bytes}; shorten them",
                    param="messages",
                    code="session_too_large",
                )
            return number + 1
    return 0


def _pools(services: Services, accepted: AcceptedGeneration) -> tuple[Pool, ...]:
    fleet = services.registry.fleet
    adapter = adapter_of(accepted, fleet)
    route = RouteRequest(
        request_id=accepted.request_id,
        model=accepted.request.model,
        variants=variants_in(fleet, adapter.variants) if adapter else None,
        may_leave=not accepted.principal.is_local_only,
    )
    return reachable_pools(route, tier_policy(accepted.tier, services.router_weights), fleet)


def _room(accepted: AcceptedGeneration, pools: tuple[Pool, ...]) -> int:
    """Tokens available for the prompt in the narrowest pool, so that a growing conversation does not move to a dearer
    pool merely because of its length."""
    window, tier = min(pool.context_window for pool in pools), accepted.tier
    limit = output_limit(accepted.request)
    answer = min(tier.default_max_tokens, window // _ANSWER_SHARE) if limit is None else limit
    room = window - answer
    return room if tier.context_tokens is None else min(room, tier.context_tokens)


async def _fits(services: Services, prompt: Prompt, pools: tuple[Pool, ...], num_left: int, room: int) -> bool:
    chat = modern(prompt.chat(num_left))
    if upper_bounds(chat)[0] <= room:
        return True
    try:
        # A text that is certainly too long is not tokenized to its end.
        counted = await count(chat, pools, services.bundles, limit=max(room, 1), kept=None)
    except TextTooLong:
        return False
    return (counted.longest // BYTES_PER_TOKEN if counted.is_estimate else counted.longest) <= room
