"""The fields of a tier, as its form and its page show them."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Literal

from gateway.admin.tiers import TierFields
from gateway.dashboard.amounts import shown_amount
from gateway.dashboard.draft_values import decimal, nanousd, whole
from gateway.dashboard.numbers import full_count, money
from gateway.dashboard.typed import CHECKED, Standing, Typed

Kind = Literal["number", "money", "decimal", "tick", "choice", "lines"]


@dataclass(frozen=True)
class TierField:
    name: str
    label: str
    kind: Kind = "number"
    hint: str = ""
    choices: tuple[tuple[str, str], ...] = ()
    empty: str = "no limit"
    """What the page shows if there is no value."""

    def standing(self, value: Any) -> str:
        if value is None:
            return ""
        if self.kind == "tick":
            return CHECKED if value else ""
        if self.kind == "lines":
            return "\n".join(value)
        return shown_amount(value) if self.kind == "money" else f"{value}"

    def read(self, typed: Typed) -> Any:
        """The typed value, for the draft."""
        text = typed.text(self.name)
        match self.kind:
            case "tick":
                return typed.is_checked(self.name)
            case "lines":
                return typed.lines(self.name)
            case "choice" if self.name == "on_saturation":
                return text
            case "money":
                return nanousd(text)
            case "decimal":
                return decimal(text)
            case _:
                return whole(text)

    def show(self, value: Any) -> str:
        if value is None:
            return self.empty
        match self.kind:
            case "tick":
                return "yes" if value else "no"
            case "lines":
                return ", ".join(value)
            case "choice":
                return dict(self.choices)[str(value)]
            case "money":
                return money(value)
            case "decimal":
                return f"{value:g}"
            case _:
                return full_count(value)


_PRIORITIES = (("0", "0, first"), ("1", "1"), ("2", "2"), ("3", "3, last"))
_SATURATION = (
    ("fallback", "a smaller model answers"),
    ("queue", "it waits"),
    ("reject", "it is refused"),
)
FIELDS = (
    TierField("requests_per_minute", "Requests a minute"),
    TierField("tokens_per_minute", "Tokens a minute"),
    TierField("concurrency", "Requests at a time"),
    TierField("tokens_per_day", "Tokens a day"),
    TierField("budget_nanousd_per_month", "Dollars a month", "money"),
    TierField("context_tokens", "Tokens of a prompt"),
    TierField("default_max_tokens", "Tokens of an answer that does not say"),
    TierField("max_adapters", "Adapters"),
    TierField("priority", "Priority", "choice", "In the queues of workers.", _PRIORITIES),
    TierField("weight", "Weight", "decimal", "Its share among tenants of the same priority."),
    TierField("on_saturation", "When the large pool is full", "choice", choices=_SATURATION),
    TierField(
        "large_share", "Large share", "decimal", "Of calls to auto, 0 to 1; goes before the threshold.", empty="not set"
    ),
    TierField(
        "complexity_threshold", "Complexity threshold", "decimal", "From this score on auto takes the large model."
    ),
    TierField(
        "uncertain_threshold", "Threshold of guesses", "decimal", "Where the score is a guess.", empty="the same"
    ),
    TierField(
        "ttft_target_ms",
        "First token within, ms",
        hint="Best-effort requests keep off pools that are later.",
        empty="none",
    ),
    TierField("is_hedged", "A late first token is asked of a second replica, too", "tick"),
    TierField("is_best_effort", "Best effort: not sent to a pool that is full", "tick"),
    TierField("allowed_pools", "Pools", "lines", "One each line. Empty: all.", empty="all"),
)


def standing_tier(tier: Any) -> Standing:
    """The form's initial values, from a view or a draft."""
    return {field.name: field.standing(getattr(tier, field.name)) for field in FIELDS}


def typed_tier(typed: Typed, *, only: Collection[str] | None = None) -> dict[str, Any]:
    return {field.name: field.read(typed) for field in FIELDS if only is None or field.name in only}


assert {field.name for field in FIELDS} == set(TierFields.model_fields)
