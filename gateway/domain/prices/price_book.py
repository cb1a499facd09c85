"""What a request costs, in whole nano-dollars: its model's price, adapter's surcharge, minimum and tier's discount.

Only shares are rounded (`money.share_of`), the discount's and a cached answer's; everything else is a count times a
price.
"""

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol, TypeVar
from uuid import UUID

from gateway.domain.money import share_of
from protocol.usage import PriceLine, PriceLineKind

UNPRICED_VERSION = "unpriced"
BATCHES = ""
"""Takes the place of a tier in the discount of batches; no tier has this name."""
_SEPARATOR = "+"
_EVER, _NEVER = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)
_MAX_FOUND = 10_000


@dataclass(frozen=True, slots=True)
class PriceTerms:
    version: str
    model_id: str
    prompt_nanousd: int
    cached_prompt_nanousd: int
    completion_nanousd: int
    minimum_nanousd: int
    valid_from: datetime
    cached_answer_basis_points: int = 0


@dataclass(frozen=True, slots=True)
class SurchargeTerms:
    version: str
    model_id: str
    adapter_id: UUID | None
    token_nanousd: int
    valid_from: datetime


@dataclass(frozen=True, slots=True)
class DiscountTerms:
    version: str
    tier: str
    basis_points: int
    valid_from: datetime


@dataclass(frozen=True, slots=True)
class RequestPrice:
    """The price of one request, fixed from arrival to end. `version` names every row that it was made from."""

    version: str
    prompt_nanousd: int = 0
    cached_prompt_nanousd: int = 0
    completion_nanousd: int = 0
    adapter_token_nanousd: int = 0
    minimum_nanousd: int = 0
    discount_basis_points: int = 0
    cached_answer_basis_points: int = 0

    def cost_nanousd(
        self,
        *,
        prompt_tokens: int,
        cached_prompt_tokens: int,
        completion_tokens: int,
        is_cached_answer: bool = False,
    ) -> int:
        """A request without tokens costs nothing. is_cached_answer: only `cached_answer_basis_points` of the price of
        its output, which was not computed, are charged."""
        num_tokens = prompt_tokens + completion_tokens
        if not num_tokens:
            return 0
        gross = (
            (prompt_tokens - cached_prompt_tokens) * self.prompt_nanousd
            + cached_prompt_tokens * self.cached_prompt_nanousd
            + completion_tokens * self.completion_nanousd
            + num_tokens * self.adapter_token_nanousd
        )
        if is_cached_answer:
            gross -= self._spared_nanousd(completion_tokens)
        gross = max(gross, self.minimum_nanousd)
        return gross - share_of(gross, basis_points=self.discount_basis_points)

    def most_nanousd(self, *, prompt_tokens: int, completion_tokens: int) -> int:
        """The most that the request may cost, however much of its prompt is cached."""
        is_cached_dearer = self.cached_prompt_nanousd > self.prompt_nanousd
        return self.cost_nanousd(
            prompt_tokens=prompt_tokens,
            cached_prompt_tokens=prompt_tokens if is_cached_dearer else 0,
            completion_tokens=completion_tokens,
        )

    def lines(
        self,
        *,
        prompt_tokens: int,
        cached_prompt_tokens: int,
        completion_tokens: int,
        is_cached_answer: bool = False,
    ) -> tuple[PriceLine, ...]:
        """The lines that add up to `cost_nanousd` of the same tokens; without tokens there are none."""
        num_tokens = prompt_tokens + completion_tokens
        if not num_tokens:
            return ()
        lines = [
            *_line("input", prompt_tokens - cached_prompt_tokens, self.prompt_nanousd),
            *_line("cached_input", cached_prompt_tokens, self.cached_prompt_nanousd),
            *_line("output", completion_tokens, self.completion_nanousd),
        ]
        if self.adapter_token_nanousd:
            lines += _line("adapter", num_tokens, self.adapter_token_nanousd)
        spared = self._spared_nanousd(completion_tokens) if is_cached_answer else 0
        if spared:
            lines += _line("cached_answer", 1, -spared)
        gross = sum([line.amount_nanousd for line in lines])
        if gross < self.minimum_nanousd:
            lines += _line("minimum", 1, self.minimum_nanousd - gross)
            gross = self.minimum_nanousd
        discount = share_of(gross, basis_points=self.discount_basis_points)
        if discount:
            lines += _line("discount", 1, -discount)
        return tuple(lines)

    def _spared_nanousd(self, completion_tokens: int) -> int:
        """What an answer from the cache costs less."""
        output = completion_tokens * (self.completion_nanousd + self.adapter_token_nanousd)
        return output - share_of(output, basis_points=self.cached_answer_basis_points)


class _Versioned(Protocol):
    @property
    def version(self) -> str: ...
    @property
    def valid_from(self) -> datetime: ...


V = TypeVar("V", bound=_Versioned)
K = TypeVar("K", bound=Hashable)


@dataclass(frozen=True, slots=True)
class _Span:
    """since <= now < until"""

    since: datetime = _EVER
    until: datetime = _NEVER

    def within(self, other: "_Span") -> "_Span":
        return _Span(max(self.since, other.since), min(self.until, other.until))


class PriceBook:
    def __init__(
        self,
        prices: Iterable[PriceTerms],
        surcharges: Iterable[SurchargeTerms] = (),
        discounts: Iterable[DiscountTerms] = (),
    ) -> None:
        self._prices = _newest_first((price.model_id, price) for price in prices)
        self._surcharges = _newest_first(((each.model_id, each.adapter_id), each) for each in surcharges)
        self._discounts = _newest_first((each.tier, each) for each in discounts)
        self._found: dict[tuple[str, str | None, str | None, bool], tuple[_Span, RequestPrice]] = {}
        """Cached by `price_of`'s arguments, because requests ask for the same prices again and again."""

    def price_of(
        self,
        model_id: str,
        *,
        adapter_id: str | None = None,
        tier: str | None = None,
        is_batch: bool = False,
        now: datetime,
    ) -> RequestPrice:
        """The price from the newest valid rows. A model without a price costs nothing, and the version says so.

        adapter_id: the adapter that serves the request, if any; its own surcharge takes precedence over that of all.
        tier: its discount applies; None: the price before discounts. is_batch: the discount of batches applies if it
        is larger.
        """
        key = (model_id, adapter_id, tier, is_batch)
        found = self._found.get(key)
        if found is None or not found[0].since <= now < found[0].until:
            if len(self._found) >= _MAX_FOUND:
                self._found.clear()
            found = self._found[key] = self._find(model_id, adapter_id, (tier, BATCHES) if is_batch else (tier,), now)
        return found[1]

    def _find(
        self, model_id: str, adapter_id: str | None, tiers: tuple[str | None, ...], now: datetime
    ) -> tuple[_Span, RequestPrice]:
        """The price, and the span in which it applies."""
        span, price = _valid(self._prices, model_id, now)
        if price is None:
            return span, RequestPrice(UNPRICED_VERSION)
        versions = [price.version]
        surcharge = None
        for key in self._surcharge_keys(model_id, adapter_id):
            if surcharge is None:
                its_span, surcharge = _valid(self._surcharges, key, now)
                span = span.within(its_span)
        if surcharge is not None:
            versions.append(surcharge.version)
        discount: DiscountTerms | None = None
        for tier in tiers:
            if tier is not None:
                its_span, found = _valid(self._discounts, tier, now)
                span = span.within(its_span)
                if found is not None and (discount is None or found.basis_points > discount.basis_points):
                    discount = found
        if discount is not None:
            versions.append(discount.version)
        return span, RequestPrice(
            version=_SEPARATOR.join(versions),
            prompt_nanousd=price.prompt_nanousd,
            cached_prompt_nanousd=price.cached_prompt_nanousd,
            completion_nanousd=price.completion_nanousd,
            adapter_token_nanousd=surcharge.token_nanousd if surcharge else 0,
            minimum_nanousd=price.minimum_nanousd,
            discount_basis_points=discount.basis_points if discount else 0,
            cached_answer_basis_points=price.cached_answer_basis_points,
        )

    def _surcharge_keys(self, model_id: str, adapter_id: str | None) -> tuple[tuple[str, UUID | None], ...]:
        """The key of the adapter's own surcharge comes before that of all adapters."""
        if adapter_id is None or not self._surcharges:
            return ()
        return ((model_id, UUID(adapter_id)), (model_id, None))


def _newest_first(rows: Iterable[tuple[K, V]]) -> Mapping[K, list[V]]:
    """Among rows with the same `valid_from`, the one made last comes first: versions grow with time."""
    found: dict[K, list[V]] = {}
    for key, row in sorted(rows, key=lambda pair: (pair[1].valid_from, pair[1].version), reverse=True):
        found.setdefault(key, []).append(row)
    return found


def _valid(rows: Mapping[K, list[V]], key: K, now: datetime) -> tuple[_Span, V | None]:
    """The newest valid row, and the span in which it is that."""
    until = _NEVER
    for row in rows.get(key, ()):
        if row.valid_from <= now:
            return _Span(row.valid_from, until), row
        until = row.valid_from
    return _Span(_EVER, until), None


def _line(kind: PriceLineKind, quantity: int, unit_price_nanousd: int) -> list[PriceLine]:
    if not quantity:
        return []
    amount = quantity * unit_price_nanousd
    return [PriceLine(kind=kind, quantity=quantity, unit_price_nanousd=unit_price_nanousd, amount_nanousd=amount)]
