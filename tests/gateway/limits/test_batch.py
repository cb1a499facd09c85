"""Steps that leave together come to the same as each by itself."""

import asyncio
from uuid import UUID, uuid4

import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.domain.limits import LimitScope, ScopeLimits
from gateway.limits.commands import STEP_PARTS, TELL_PARTS, Counting, Terms, admit, admit_seeded, close, held_key, show
from gateway.limits.limiter import Limiter
from gateway.redis_client.grouping import Group
from gateway.redis_client.resp import Reply
from tests.support.limiters import admission, open_limiter
from tests.support.tiers import make_tier
from tests.support.valkey import ValkeyProcess

TIER = make_tier(
    requests_per_minute=9, tokens_per_minute=120, concurrency=5, tokens_per_day=150, budget_nanousd_per_month=130
)
KEY = LimitScope("key:k", ScopeLimits(requests_per_minute=8, budget_nanousd_per_month=100))
COUNTINGS: tuple[Counting, ...] = ("always", "seeded", "never")
Step = tuple[str, int, int, int]
WINDOW_US = 10**15
"""So long that both ways see one bucket."""
steps = st.lists(
    st.tuples(
        st.sampled_from(
            ["admit", "admit", "admit", "seeded", "actual", "refund", "told live", "told done", "told done"]
        ),
        st.integers(0, 7),
        st.integers(0, 40),
        st.integers(0, 40),
    ),
    min_size=1,
    max_size=40,
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=steps)
def test_a_batch_comes_to_the_same_as_its_steps(valkey: ValkeyProcess, steps: list[Step]) -> None:
    async def both() -> None:
        async with open_limiter(valkey.url) as limiter:
            alone = await _answers(limiter, uuid4(), steps, is_together=False)
            together = await _answers(limiter, uuid4(), steps, is_together=True)
            assert together == alone

    asyncio.run(both())


async def _answers(limiter: Limiter, tenant_id: UUID, steps: list[Step], *, is_together: bool) -> list[list[bytes]]:
    """Of each step all but times, and at last how the scopes stand."""
    asked = msgspec.structs.replace(admission(tenant_id, TIER, KEY), request_id="seeded")
    terms = Terms(asked, incarnation="i", window_us=WINDOW_US)
    calls = []
    for step in steps:
        calls.append(limiter.redis.send_step(*_encoded(terms, step)))
        if not is_together:
            await calls[-1].future
    replies = [await call.future for call in calls]
    standing = await limiter.redis.send(show(asked, window_us=WINDOW_US)).future
    held = await limiter.redis.execute("HGETALL", held_key(tenant_id, "i"))
    assert isinstance(standing, bytes) and isinstance(held, list)
    answers = [_text(reply) for reply in replies]
    # Verdict, scope and what the tenant has used, of a closing whether it did anything; but no times.
    untimed = [answer[:2] + answer[3:5] for answer in answers]
    return [*untimed, *[scope[:3] + scope[5:] for scope in map(_text, standing.split(b";"))], sorted(map(_whole, held))]


def _whole(reply: Reply) -> bytes:
    assert isinstance(reply, bytes)
    return reply


def _text(reply: Reply) -> list[bytes]:
    assert isinstance(reply, bytes)
    return reply.split()


def _encoded(terms: Terms, step: Step) -> tuple[Group, bytes, int]:
    kind, number, tokens, cost = step
    request_id = f"r{number}"
    if kind.startswith("told"):
        ended_s = None if kind == "told live" else float(cost)
        told = terms.tell(
            request_id, tokens, cost, age_s=60, ended_s=ended_s, counting=COUNTINGS[cost % len(COUNTINGS)]
        )
        return terms.tell_group, told, TELL_PARTS
    if kind == "seeded":
        return terms.group, admit_seeded(terms.admission, [(tokens, cost), (cost, tokens)]), 4 * STEP_PARTS
    if kind == "admit":
        return terms.group, admit(request_id, tokens, cost), STEP_PARTS
    return terms.group, close(request_id, tokens, cost, "actual" if kind == "actual" else "refund"), STEP_PARTS
