"""Tiers for tests, with no limits except those that a test sets."""

from typing import Any

from gateway.domain.catalog import TierTerms


def make_tier(**fields: Any) -> TierTerms:
    unlimited = {
        "name": "test",
        "requests_per_minute": None,
        "tokens_per_minute": None,
        "concurrency": None,
        "tokens_per_day": None,
        "budget_nanousd_per_month": None,
        "context_tokens": None,
        "default_max_tokens": 16,
        "max_adapters": None,
        "large_share": None,
        "priority": 2,
        "weight": 1.0,
        "on_saturation": "fallback",
        "complexity_threshold": 0.5,
        "uncertain_threshold": None,
        "ttft_target_ms": None,
        "is_hedged": False,
        "allowed_pools": None,
        "is_best_effort": False,
    }
    return TierTerms(**(unlimited | fields))
