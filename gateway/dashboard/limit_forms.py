"""Limits of tenants, keys and end users, as fields of forms: `limits.concurrency`, `user_limits.tokens_per_day`, ..."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from gateway.admin.limit_fields import UserLimits
from gateway.dashboard.amounts import shown_amount
from gateway.dashboard.draft_values import nanousd, whole
from gateway.dashboard.numbers import full_count, money
from gateway.dashboard.typed import Typed


@dataclass(frozen=True)
class LimitField:
    name: str
    label: str
    is_money: bool = False

    def show(self, value: int | None) -> str:
        if value is None:
            return "no limit"
        return money(value) if self.is_money else full_count(value)

    def text(self, value: int | None) -> str:
        """The text of its input field."""
        if value is None:
            return ""
        return shown_amount(value) if self.is_money else str(value)

    def read(self, text: str) -> int | str | None:
        return nanousd(text) if self.is_money else whole(text)


LIMITS = {
    known.name: known
    for known in (
        LimitField("requests_per_minute", "Requests a minute"),
        LimitField("tokens_per_minute", "Tokens a minute"),
        LimitField("concurrency", "Requests at a time"),
        LimitField("tokens_per_day", "Tokens a day"),
        LimitField("budget_nanousd_per_month", "Dollars a month", is_money=True),
        LimitField("context_tokens", "Tokens of a prompt"),
        LimitField("default_max_tokens", "Tokens of an answer that does not say"),
        LimitField("max_adapters", "Adapters"),
    )
}


def fields_of(draft: type[UserLimits]) -> list[LimitField]:
    return [LIMITS[name] for name in draft.model_fields]


def standing_limits(prefix: str, draft: type[UserLimits], stored: Mapping[str, int] | None) -> dict[str, str]:
    return {f"{prefix}.{field.name}": field.text((stored or {}).get(field.name)) for field in fields_of(draft)}


def typed_limits(
    typed: Typed, prefix: str, draft: type[UserLimits], *, only: Collection[str] | None = None
) -> dict[str, Any]:
    """Limits for the draft, from all its fields or only those in `only`. An empty field becomes null."""
    found = {}
    for field in fields_of(draft):
        name = f"{prefix}.{field.name}"
        if only is None or name in only:
            found[field.name] = field.read(typed.text(name))
    return found
