"""How a tenant stands against its limits, in OpenAI's headers."""

from dataclasses import dataclass

from gateway.domain.catalog import TierTerms


@dataclass(frozen=True, slots=True)
class Standing:
    """Right after a request was counted, or refused."""

    num_requests: int
    num_tokens: int
    reset_s: float
    """Until requests and tokens are both at their full limit again, if nothing more is sent."""
    is_local: bool

    def headers(self, tier: TierTerms) -> dict[str, str]:
        headers = {"x-tiergate-limiter": "local"} if self.is_local else {}
        counts = (
            ("requests", tier.requests_per_minute, self.num_requests),
            ("tokens", tier.tokens_per_minute, self.num_tokens),
        )
        reset = format_reset(self.reset_s)
        for name, limit, used in counts:
            if limit is not None:
                headers[f"x-ratelimit-limit-{name}"] = str(limit)
                headers[f"x-ratelimit-remaining-{name}"] = str(max(0, limit - used))
                headers[f"x-ratelimit-reset-{name}"] = reset
        return headers


def format_reset(seconds: float) -> str:
    """As OpenAI writes durations: `12ms`, `1.5s`, `6m0s`, `1h0m0s`."""
    milliseconds = max(0, round(seconds * 1000))
    if milliseconds < 1000:
        return f"{milliseconds}ms"
    if milliseconds < 60_000:
        return f"{milliseconds / 1000:g}s"
    minutes, rest = divmod(round(milliseconds / 1000), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes}m{rest}s" if hours else f"{minutes}m{rest}s"
