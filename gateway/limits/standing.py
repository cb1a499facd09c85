"""A tenant's usage against its limits, in OpenAI's rate limit headers."""

import msgspec

from gateway.domain.catalog import TierTerms


class Standing(msgspec.Struct, frozen=True):
    """The usage right after a request was counted or refused."""

    num_requests: int
    num_tokens: int
    reset_s: float
    """Seconds until the full limits of requests and tokens are available again, if nothing more is sent."""
    is_local: bool

    def headers(self, tier: TierTerms) -> dict[str, str]:
        headers = {"x-tiergate-limiter": "local"} if self.is_local else {}
        reset = format_reset(self.reset_s)
        if (limit := tier.requests_per_minute) is not None:
            headers["x-ratelimit-limit-requests"] = str(limit)
            headers["x-ratelimit-remaining-requests"] = str(max(0, limit - self.num_requests))
            headers["x-ratelimit-reset-requests"] = reset
        if (limit := tier.tokens_per_minute) is not None:
            headers["x-ratelimit-limit-tokens"] = str(limit)
            headers["x-ratelimit-remaining-tokens"] = str(max(0, limit - self.num_tokens))
            headers["x-ratelimit-reset-tokens"] = reset
        return headers


def format_reset(seconds: float) -> str:
    """A duration in OpenAI's format: `12ms`, `1.5s`, `6m0s`, `1h0m0s`."""
    milliseconds = max(0, round(seconds * 1000))
    if milliseconds < 1000:
        return f"{milliseconds}ms"
    if milliseconds < 60_000:
        return f"{milliseconds / 1000:g}s"
    minutes, rest = divmod(round(milliseconds / 1000), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes}m{rest}s" if hours else f"{minutes}m{rest}s"
