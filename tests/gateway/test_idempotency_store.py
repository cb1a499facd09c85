"""Claims and answers in Redis."""

import asyncio
from collections.abc import AsyncIterator
from uuid import uuid4

import pytest

from gateway.http.errors import Conflict
from gateway.idempotency.kept import AnswerSeal, KeptAnswer
from gateway.idempotency.store import MAX_SEALED_BYTES, AnswerStore, Claim, KeyInUse, fingerprint_of
from gateway.limits.availability import Availability
from gateway.peppers import Peppers
from gateway.redis_client.pipeline import Pipeline
from tests.support.valkey import ValkeyProcess

ONE = fingerprint_of([b"one"])


@pytest.fixture
async def redis(valkey: ValkeyProcess) -> AsyncIterator[Pipeline]:
    pipeline = Pipeline(valkey.url, deadline_s=30, scripts=(), watch=Availability(asyncio.get_running_loop().time))
    await pipeline.connect()
    yield pipeline
    pipeline.close()


def make_store(redis: Pipeline, *, lease_s: int = 30, pepper: str = "pepper") -> AnswerStore:
    return AnswerStore(redis, peppers=Peppers(pepper), is_away=lambda: False, lease_s=lease_s)


async def claimed(store: AnswerStore, tenant: str) -> Claim:
    claim = await store.claim(tenant, "k", ONE)
    assert isinstance(claim, Claim)
    return claim


async def test_the_claim_of_a_gateway_that_died_ends_with_its_lease(redis: Pipeline) -> None:
    tenant, dead, alive = str(uuid4()), make_store(redis, lease_s=1), make_store(redis)
    old = await claimed(dead, tenant)
    with pytest.raises(KeyInUse):
        await alive.claim(tenant, "k", ONE)
    async with asyncio.timeout(60):
        while True:
            try:
                await claimed(alive, tenant)
                break
            except KeyInUse:
                await asyncio.sleep(0.1)
    # Whoever was taken for dead changes nothing any more.
    await dead.keep(old, KeptAnswer(200, {}, b"late"))
    with pytest.raises(KeyInUse):
        await alive.claim(tenant, "k", ONE)


async def test_an_answer_too_large_is_told_as_such_and_not_made_again(redis: Pipeline) -> None:
    store = make_store(redis)
    random = b"".join(uuid4().bytes for _ in range(MAX_SEALED_BYTES // 16 + 1))
    for answer in (None, KeptAnswer(200, {}, random)):
        tenant = str(uuid4())
        await store.keep(await claimed(store, tenant), answer)
        with pytest.raises(Conflict) as caught:
            await store.claim(tenant, "k", ONE)
        assert caught.value.code == "idempotency_answer_not_kept"
        assert "too large" in caught.value.message


async def test_an_answer_under_a_pepper_that_is_gone_is_told_as_such_and_not_made_again(redis: Pipeline) -> None:
    store, tenant = make_store(redis), str(uuid4())
    await store.keep(await claimed(store, tenant), KeptAnswer(200, {}, b"short"))
    with pytest.raises(Conflict, match="under a pepper that this gateway does not have") as caught:
        await make_store(redis, pepper="another").claim(tenant, "k", ONE)
    assert caught.value.code == "idempotency_answer_not_kept"
    assert isinstance(await store.claim(tenant, "k", ONE), KeptAnswer)


async def test_what_is_kept_shows_nothing_of_the_answer(redis: Pipeline) -> None:
    store, tenant = make_store(redis), str(uuid4())
    claim = await claimed(store, tenant)
    await store.keep(claim, KeptAnswer(200, {}, b"a secret" * 9))
    kept = await redis.execute("GET", claim.name)
    assert isinstance(kept, bytes) and b"secret" not in kept
    assert AnswerSeal(Peppers("another")).open(kept[33:], name=claim.name) is None
    ttl = await redis.execute("TTL", claim.name)
    assert isinstance(ttl, int) and 0 < ttl <= 24 * 3600
