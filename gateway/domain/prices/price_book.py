"""What tokens cost. Integers of 1e-9 dollars throughout."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from protocol.usage import PriceLine, PriceLineKind

UNPRICED_VERSION = "unpriced"


@dataclass(frozen=True, slots=True)
class PriceTerms:
    version: str
    model_id: str
    prompt_nanousd: int
    cached_prompt_nanousd: int
    completion_nanousd: int
    valid_from: datetime

    def cost_nanousd(self, *, prompt_tokens: int, cached_prompt_tokens: int, completion_tokens: int) -> int:
        return (
            (prompt_tokens - cached_prompt_tokens) * self.prompt_nanousd
            + cached_prompt_tokens * self.cached_prompt_nanousd
            + completion_tokens * self.completion_nanousd
        )

    def lines(self, *, prompt_tokens: int, cached_prompt_tokens: int, completion_tokens: int) -> tuple[PriceLine, ...]:
        """What makes up `cost_nanousd` of the same tokens; none of nothing."""
        found = []
        if prompt_tokens != cached_prompt_tokens:
            found.append(_line("input", prompt_tokens - cached_prompt_tokens, self.prompt_nanousd))
        if cached_prompt_tokens:
            found.append(_line("cached_input", cached_prompt_tokens, self.cached_prompt_nanousd))
        if completion_tokens:
            found.append(_line("output", completion_tokens, self.completion_nanousd))
        return tuple(found)


class PriceBook:
    def __init__(self, prices: Iterable[PriceTerms]) -> None:
        by_model: dict[str, list[PriceTerms]] = {}
        for price in sorted(prices, key=lambda price: (price.valid_from, price.version), reverse=True):
            by_model.setdefault(price.model_id, []).append(price)
        self._by_model: Mapping[str, list[PriceTerms]] = by_model

    def price_of(self, model_id: str, *, now: datetime) -> PriceTerms:
        """The newest price that is valid; a model that nobody priced costs nothing and says so in its version."""
        for price in self._by_model.get(model_id, ()):
            if price.valid_from <= now:
                return price
        return PriceTerms(UNPRICED_VERSION, model_id, 0, 0, 0, now)


def _line(kind: PriceLineKind, quantity: int, unit_price_nanousd: int) -> PriceLine:
    return PriceLine(
        kind=kind,
        quantity=quantity,
        unit_price_nanousd=unit_price_nanousd,
        amount_nanousd=quantity * unit_price_nanousd,
    )
