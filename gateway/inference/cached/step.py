"""The step itself: look for a cached answer; give it again, or keep the new one."""

import time
from dataclasses import dataclass, field

from gateway.answer_cache.entry import CachedAnswer
from gateway.domain.answer_caching.terms import CacheTerms
from gateway.inference.accounts import Accounts
from gateway.inference.cached.names import bucket_name, exact_name, last_text
from gateway.inference.cached.similar import nearest, vector_of
from gateway.inference.cached.use import Use
from gateway.inference.exchange import Exchange
from gateway.inference.measure import Measured
from gateway.inference.server_tools.rounds import RunRound
from gateway.inference.stream import STREAM_HEADERS, deliver
from gateway.inference.usage_record import CACHED, UsageRecord
from gateway.inference.validate import Accepted, AcceptedGeneration
from gateway.services import Services
from protocol.accounting import DONE_EVENT

RESULT = "x-tiergate-cache"
_WHOLE = ("stop", "length", "tool_calls", "function_call")
_MAKESHIFT = ("saturated", "unavailable")
"""Route reasons of answers from a substitute pool, which are not cached."""
_TOLD = ("x-tiergate-model", "x-tiergate-pool", "x-tiergate-adapter", "x-tiergate-complexity")


@dataclass
class Caching:
    """The caching of one request. near: its bucket and vector, once they are known."""

    services: Services
    accepted: AcceptedGeneration
    terms: CacheTerms
    name: str
    found: CachedAnswer | None = None
    near: tuple[str, bytes] | None = None

    async def look(self, measured: Measured, run: RunRound) -> None:
        cache, tenant = self.services.answer_cache, self.accepted.principal.tenant_text
        self.found = await cache.get(tenant, self.name)
        text, model = last_text(self.accepted.request), self.services.settings.cache_embedding_model
        if self.found is not None or self.terms.mode != "semantic" or text is None or model is None:
            return
        vector = await vector_of(text, self.accepted, model=model, run=run)
        if vector is None:
            return
        bucket = bucket_name(self.accepted, measured)
        self.near = bucket, vector
        name = nearest(vector, await cache.near(tenant, bucket), min_similarity=self.terms.min_similarity)
        self.found = None if name is None else await cache.get(tenant, name)

    def tell(self, exchange: Exchange) -> None:
        """Set the result header and count the lookup. Called once the request is admitted, so refusals have neither."""
        result = exchange.extra_headers[RESULT] = "miss" if self.found is None else "hit"
        self.services.metrics.cached_answers.add((result, self.accepted.tier.name))

    async def put(self, answer: CachedAnswer) -> None:
        cache, tenant = self.services.answer_cache, self.accepted.principal.tenant_text
        await cache.put(tenant, self.name, answer, ttl_s=self.terms.ttl_s)
        if self.near is not None:
            bucket, vector = self.near
            await cache.put_near(tenant, bucket, self.name, vector, ttl_s=self.terms.ttl_s)

    def forget_soon(self) -> None:
        self.services.answer_cache.forget_soon(self.accepted.principal.tenant_text, self.name)


async def caching_of(
    services: Services, accepted: Accepted[object], use: Use, measured: Measured, run: RunRound
) -> Caching:
    generation: AcceptedGeneration = accepted  # type: ignore[assignment]
    caching = Caching(services, generation, use.terms, exact_name(generation, measured))
    if use.is_read:
        await caching.look(measured, run)
    return caching


async def give_again(answer: CachedAnswer, exchange: Exchange, record: UsageRecord, accounts: Accounts) -> None:
    exchange.end_preparation()
    record.note_cached(answer)
    age_s = max(0, int(time.time() - answer.made_at_s))
    exchange.extra_headers |= answer.headers | {"x-tiergate-route": CACHED, "age": str(age_s)}
    if not record.accepted.request.stream:  # type: ignore[union-attr]
        return await deliver(answer.parts[0], exchange, record, accounts)
    await exchange.start(200, STREAM_HEADERS)
    record.is_delivered = True
    for part in answer.parts:
        await exchange.send(part)
    await exchange.keep()
    await accounts.close("ok")
    await exchange.finish(DONE_EVENT)


@dataclass
class Keeper:
    """Listens to the answer, and caches it when it is complete."""

    caching: Caching
    exchange: Exchange
    record: UsageRecord
    parts: list[bytes] = field(default_factory=list)
    is_kept: bool = False

    def hear(self, chunk: bytes) -> None:
        # Comments that only report that the request is waiting are not replayed.
        if not chunk.startswith(b":") or b"data:" in chunk:
            self.parts.append(chunk)

    async def keep(self, body: bytes | None) -> None:
        record, headers = self.record, self.exchange.extra_headers
        if record.finish_reason not in _WHOLE or record.reason in _MAKESHIFT or record.overflow is not None:
            return
        answer = CachedAnswer(
            made_at_s=time.time(),
            headers={name: headers[name] for name in _TOLD if name in headers},
            parts=self.parts if body is None else [body],
            pool=record.pool,
            model_id=record.model_id,
            model_version=record.model_version,
            adapter_id=record.adapter_id,
            prompt_tokens=record.prompt_tokens,
            completion_tokens=record.completion_tokens,
            finish_reason=record.finish_reason,
        )
        await self.caching.put(answer)
        self.is_kept = True

    def undo(self) -> None:
        if self.is_kept:
            self.caching.forget_soon()
